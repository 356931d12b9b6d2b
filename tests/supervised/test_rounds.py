"""Complete runs of every method: results that must be equal, and what is sent."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ccfcpp.engine.client import Client, Member, Memory
from ccfcpp.engine.exchange import Task
from ccfcpp.engine.federation import Federation, RoundReport
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import count_bytes, pack
from ccfcpp.engine.transport import Reply, Transport
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.messages import Broadcast, LocalUpdate, ServerState
from supervised.methods.scaffold import ControlledBroadcast, ControlledState, ControlledUpdate
from tests.support.classification import (
    SIZES,
    labelled_clients,
    normalisations,
    small_algorithm,
    small_config,
    small_federation,
)
from tests.support.federation import CPU

SCAFFOLD, FEDBN = "method=scaffold", "method=fedbn"


@dataclass
class Run:
    """Results of a run: the server's state, the clients' memories, and the rounds' reports."""

    state: ServerState
    memories: dict[int, Memory]
    reports: list[RoundReport]


def run_small(config: ClassifyConfig, clients: Sequence[Client]) -> Run:
    federation = small_federation(config, clients)
    rounds = list(federation.run(federation.algorithm.initial_state(federation.randomness)))
    return finished(rounds, federation.transport.memories)


def finished(rounds: list[tuple[ServerState, RoundReport]], memories: ClientMemories) -> Run:
    remembered = {number: memories.take(number) for number in range(len(SIZES))}
    return Run(rounds[-1][0], remembered, [report for _, report in rounds])


def assert_same(found: Run, expected: Run, atol: float) -> None:
    pairs: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = [
        (pack(found.state), pack(expected.state)),
        *((found.memories[number], memory) for number, memory in expected.memories.items()),
    ]
    for tensors, others in pairs:
        assert tensors.keys() == others.keys()
        for name, tensor in others.items():
            torch.testing.assert_close(tensors[name], tensor, atol=atol, rtol=0, msg=name)
    for report, other in zip(found.reports, expected.reports, strict=True):
        assert (report.round, report.clients) == (other.round, other.clients)
        assert report.figures == pytest.approx(other.figures)
        assert (report.bytes_up, report.bytes_down) == (other.bytes_up, other.bytes_down)
        assert not report.refused


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("method", CLASSIFIERS)
def test_neither_the_order_of_the_clients_nor_the_cohort_matters(method: str) -> None:
    """Runs with augmentation, whose random numbers also depend on the client alone."""
    settings = (f"method={method}", "augmentation.flip=true", "augmentation.crop_padding=1")
    alone = run_small(small_config("compute.cohort=1", *settings), labelled_clients(*SIZES))
    together = small_config("compute.cohort=4", *settings)
    assert_same(run_small(together, labelled_clients(*SIZES)[::-1]), alone, atol=1e-6)


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_interrupted_and_resumed_is_uninterrupted(method: str, tmp_path: Path) -> None:
    """Not all clients take part in each round, so that some memories are older than others."""
    config = small_config(f"method={method}", "availability.sample_fraction=0.6")
    whole = run_small(config, labelled_clients(*SIZES))

    path = tmp_path / "latest.safetensors"
    memories = ClientMemories(CPU, 10**9, tmp_path)
    federation = small_federation(config, labelled_clients(*SIZES), memories)
    rounds = federation.run(federation.algorithm.initial_state(federation.randomness))
    first = next(rounds)
    save_checkpoint(path, Checkpoint(1, first[0], memories.save(), {}))
    memories.settle()
    # What was done after the checkpoint is lost.
    next(rounds)

    checkpoint = load_checkpoint(path, federation.algorithm.state_type, CPU)
    memories = ClientMemories(CPU, 10**9, tmp_path)
    memories.restore(checkpoint.memories)
    federation = small_federation(config, labelled_clients(*SIZES), memories)
    later = federation.run(checkpoint.state, checkpoint.next_round)
    assert_same(finished([first, *later], memories), whole, atol=0)


def test_every_method_takes_effect() -> None:
    """Each method gives finite numbers, and a model different from all others."""
    heads: list[Tensor] = []
    for method in CLASSIFIERS:
        run = run_small(small_config(f"method={method}"), labelled_clients(*SIZES))
        assert all(torch.isfinite(tensor).all() for tensor in pack(run.state).values())
        assert not any(run.state.model["head.weight"].equal(other) for other in heads)
        heads.append(run.state.model["head.weight"])


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_clients_that_cannot_train_leave_the_model(method: str) -> None:
    config = small_config(f"method={method}")
    federation = small_federation(config, labelled_clients(1, 1))
    state = federation.algorithm.initial_state(federation.randomness)
    after, report = federation.run_round(state, 0)
    assert "loss" not in report.figures
    for name, entry in state.model.items():
        torch.testing.assert_close(after.model[name], entry, msg=name)


# --- SCAFFOLD -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_scaffolds_server_control_is_the_mean_of_all_clients(fraction: float) -> None:
    """After every round: c moves by Σ/N over those that take part, the others' c_i stand still."""
    config = small_config(SCAFFOLD, f"availability.sample_fraction={fraction}")
    federation = small_federation(config, labelled_clients(*SIZES))
    state = federation.algorithm.initial_state(federation.randomness)
    assert isinstance(state, ControlledState)
    none = torch.zeros_like(state.control)
    own = dict.fromkeys(range(len(SIZES)), none)
    for state, report in federation.run(state):  # noqa: B020 - the state moves on
        after = {
            number: federation.transport.memories.take(number).get("control", none)
            for number in own
        }
        assert {n for n in own if not after[n].equal(own[n])} <= set(report.clients)
        assert isinstance(state, ControlledState)
        mean = torch.stack(list(after.values())).mean(dim=0)
        torch.testing.assert_close(state.control, mean, atol=1e-12, rtol=0)
        assert mean.abs().max() > 0.01
        own = after


# --- what travels -------------------------------------------------------------------------------


@dataclass
class Wire:
    """All messages and updates."""

    messages: list[Broadcast] = field(default_factory=list)
    updates: list[LocalUpdate] = field(default_factory=list)


class Observed:
    """A transport that records messages and updates.

    Args:
        whole: One that carries it.
        seen: Where it is noted.
    """

    def __init__(self, whole: Transport, seen: Wire) -> None:
        self.whole = whole
        self.seen = seen
        self.save, self.restore, self.settle = whole.save, whole.restore, whole.settle

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        assert isinstance(message, Broadcast)
        self.seen.messages.append(message)
        for reply in self.whole.deliver(task, message, members):
            assert isinstance(reply.update, LocalUpdate)
            self.seen.updates.append(reply.update)
            yield reply


def run_observed(config: ClassifyConfig, clients: Sequence[Client]) -> tuple[Run, Wire]:
    federation, seen = small_federation(config, clients), Wire()
    watched = Federation(
        config.method,
        federation.algorithm,
        list(federation.members.values()),
        federation.availability,
        federation.randomness,
        Observed(federation.transport, seen),
    )
    rounds = list(watched.run(federation.algorithm.initial_state(federation.randomness)))
    return finished(rounds, federation.transport.memories), seen


def test_fedbn_keeps_normalisations_at_the_clients() -> None:
    config = small_config(FEDBN)
    run, wire = run_observed(config, labelled_clients(*SIZES))
    model = small_algorithm(config, len(SIZES)).make_model()
    norms = normalisations(model)
    travelling = set(model.state_dict()) - norms
    assert len(wire.messages) == 3
    assert len(wire.updates) == 3 * len(SIZES)
    for payload in [*wire.messages, *wire.updates, run.state]:
        names = {name.removeprefix("model/") for name in pack(payload)}
        assert names - {"samples", "steps", "loss"} == travelling
    kept = [
        {name.removeprefix("held/"): entry for name, entry in memory.items()}
        for memory in run.memories.values()
    ]
    assert all(memory.keys() == norms for memory in kept)
    for name in norms:
        if not name.endswith("num_batches_tracked"):
            assert not kept[0][name].equal(kept[1][name])


def test_bytes_are_those_of_what_travels() -> None:
    run, wire = run_observed(small_config(SCAFFOLD), labelled_clients(*SIZES))
    assert {type(message) for message in wire.messages} == {ControlledBroadcast}
    assert {type(update) for update in wire.updates} == {ControlledUpdate}
    down = sum(count_bytes(pack(message)) for message in wire.messages) * len(SIZES)
    assert sum(report.bytes_down for report in run.reports) == down
    assert sum(report.bytes_up for report in run.reports) == sum(
        count_bytes(pack(update)) for update in wire.updates
    )


def test_fedbn_sends_less_than_fedavg_and_scaffold_about_twice_as_much() -> None:
    # Wider than the other tests' network, whose parts are mostly smaller than what aligns them.
    wide = ("model.widths=[16,32]", "model.representation=64", "training.rounds=1")
    sent = {}
    for method in CLASSIFIERS:
        run = run_small(small_config(f"method={method}", *wide), labelled_clients(12, 9))
        sent[method] = (run.reports[0].bytes_down, run.reports[0].bytes_up)
    for way in range(2):
        plain = sent["fedavg"][way]
        assert 0.9 * plain < sent["fedbn"][way] < plain
        assert sent["scaffold"][way] == pytest.approx(2 * plain, rel=0.02)
        others = CLASSIFIERS.keys() - {"fedbn", "scaffold"}
        assert {sent[method][way] for method in others} == {plain}


@pytest.mark.parametrize("method", CLASSIFIERS)
def test_what_clients_remember_is_all_that_is_held(method: str) -> None:
    """Updates are no views into a whole model, which would take more memory than is counted."""
    memories = ClientMemories(CPU, 10**9)
    federation = small_federation(
        small_config(f"method={method}"), labelled_clients(9, 9), memories
    )
    federation.run_round(federation.algorithm.initial_state(federation.randomness), 0)
    for client in (0, 1):
        memory = memories.take(client)
        held = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in memory.values()
        }
        counted = sum(tensor.nbytes for tensor in memory.values())
        # Parts of a model that is kept whole lie at multiples of 64 bytes.
        assert sum(held.values()) <= 1.3 * counted
