"""Secure sums with clients on other machines: the bits of those in one process, and no summand."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save

from ccfcpp.clustering.mahalanobis import split_model
from ccfcpp.clustering.systems.synthetic.pooled import GAN_EPOCH
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import ImageData
from ccfcpp.deployment.client.run import make_client_run
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError, Task
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.payload import pack
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.protection import Protection
from ccfcpp.privacy.sums.client import Participants
from ccfcpp.privacy.sums.identity import SIGNATURE_BYTES, Safeguard
from ccfcpp.privacy.sums.messages import (
    EXCHANGES_OF_A_SUM,
    Begun,
    ClientRows,
    Keys,
    ShownShares,
    letters_of_neighbours,
    numbers_of,
)
from ccfcpp.privacy.sums.protocol import (
    BOX_BYTES,
    PUBLIC_BYTES,
    SHARE_BYTES,
    Neighbour,
    Participant,
)
from ccfcpp.privacy.sums.secret_sharing import PRIME
from tests.deployment.test_experiment import experiment_on, grid_of, run
from tests.support.classification import labelled_clients, small_config
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.deployment import (
    RUN,
    Grid,
    introduced,
    one_by_one,
    resent,
    spec_of,
    trusting,
    worker_of,
)
from tests.support.federation import CPU, assert_same_state

SUMS: Tree = {"privacy": {"secure_sums": True}, "compute": {"cohort": 1}, "device": "cpu"}
SYNCHRONISED: Tree = {
    "training": {"pretraining": "neighbours", "steps": "synchronised", "rounds": 2},
    "centroids": {"search": "lloyd", "refine_steps": 2},
}
LOCAL: Tree = {
    "training": {"pretraining": "neighbours", "steps": "local", "rounds": 2},
    "centroids": {"search": "lloyd", "refine_steps": 2},
}
SYSTEMS: dict[str, tuple[str, Tree]] = {
    "fed-scan": ("fed-scan", {}),
    "ccfc++ synchronised": ("ccfc++", SYNCHRONISED),
    "ccfc++ local": ("ccfc++", LOCAL),
}
SIZES = (30, 25, 20, 15)
STAGES = ("keys", "shares", "under masks", "agreement", "unmasking")


def over_network(
    method: str, tree: Tree, clients: list[Client], folder: Path
) -> tuple[Federation[Any, Any], Grid]:
    config = tiny(method, SUMS, tree)
    algorithm = made(config, samples=sum(map(len, clients)))
    works = algorithm.client_side(ClientContext(max(map(len, clients)), 1)).works
    exchanges = [work.exchange for work in works.values()]
    protection = Protection(config.section(PrivacyConfig), method, exchanges, len(clients))
    asked = {name: work.exchange for name, work in protection.works(works).items()}
    grid = Grid({client.name: worker_of(client, folder) for client in clients})
    roster = introduced(grid, folder)
    spec = spec_of(config, clients, clusters=3, roster=roster.digest)
    transport = Deployed(grid.channel, spec, RUN, asked, CPU)
    members, seed = [client.member for client in clients], Randomness(config.seed)
    stages = [protection.stage]
    return Federation(method, algorithm, members, Availability(), seed, transport, stages), grid


def in_one_process(
    method: str, tree: Tree, clients: list[Client], samples: int = 0
) -> Federation[Any, Any]:
    config = tiny(method, SUMS, tree)
    algorithm = made(config, samples=samples or sum(map(len, clients)))
    return one_by_one(spec_of(config, clients), algorithm, clients)


def rounds(federation: Federation[Any, Any]) -> list[Any]:
    return list(federation.run(federation.algorithm.initial_state(Randomness(0))))


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_result_has_the_bits_of_one_process(system: str, tmp_path: Path) -> None:
    clients = clients_of_sizes(*SIZES)
    deployed, grid = over_network(*SYSTEMS[system], clients, tmp_path)
    found, expected = rounds(deployed), rounds(in_one_process(*SYSTEMS[system], clients))
    assert len(found) == len(expected)
    for (state, report), (other, beside) in zip(found, expected, strict=True):
        assert_same_state(state, other)
        assert report.figures == beside.figures
        assert not report.refused
    asked = {json.loads(packet.header)["exchange"] for _, packet in grid.requests}
    assert all("under masks" in name or "secure sum" in name for name in asked)


def test_what_a_client_sends_is_another_number_each_time(tmp_path: Path) -> None:
    """The same update under other masks: nothing of it can be recognised."""
    sent: list[torch.Tensor] = []
    for number in range(2):
        deployed, grid = over_network(
            "fed-scan", {}, clients_of_sizes(*SIZES), tmp_path / f"{number}"
        )
        grid.tampering["client 1"] = noting(sent)
        next(iter(deployed.run(deployed.algorithm.initial_state(Randomness(0)))))
    half = len(sent) // 2
    assert half > 3
    for first, second in zip(sent[:half], sent[half:], strict=True):
        assert first.shape == second.shape
        assert (first == second).float().mean() < 0.01


def noting(sent: list[torch.Tensor]) -> Callable[[Packet], Packet]:
    def noted(packet: Packet) -> Packet:
        content = load(packet.payload) if packet.payload else {}
        if "words" in content:
            sent.append(content["words"])
        return packet

    return noted


@pytest.mark.parametrize("how", ["lost", "of another form"])
@pytest.mark.parametrize("stage", STAGES)
def test_whose_answer_cannot_be_used_is_left_out(stage: str, how: str, tmp_path: Path) -> None:
    clients = clients_of_sizes(*SIZES)
    deployed, grid = over_network("fed-scan", {}, clients, tmp_path)
    state = deployed.algorithm.initial_state(Randomness(0))
    spoilt = {"lost": lambda packet: Undelivered("its node failed"), "of another form": cut_short}[
        how
    ]
    grid.tampering["client 2"] = at_stage(grid, stage, spoilt)
    after, report = deployed.run_round(state, 0)
    if stage in ("agreement", "unmasking"):  # its numbers are in the sum
        assert report.clients == [0, 1, 2, 3]
        assert not report.refused
        assert not report.absent
        assert_same_state(after, state_after_a_round())
        return
    reasons = (report.absent if how == "lost" else report.refused)[2]
    if stage != "under masks":
        assert f"{stage} of the secure sum" in reasons[0]
    assert_same_state(after, state_after_a_round(without=2))


def at_stage(grid: Grid, stage: str, do: Callable[[Packet], Any]) -> Callable[[Packet], Any]:
    """Do something to answers of a stage."""

    def done(packet: Packet) -> Any:
        asked = json.loads(grid.requests[-1][1].header)["exchange"]
        return do(packet) if stage in asked else packet

    return done


def cut_short(packet: Packet) -> Packet:
    """The same tensors without their last numbers, as vectors."""
    found = {name: each.flatten()[:-1] for name, each in load(packet.payload).items()}
    return packet._replace(payload=save(found))


@cache
def state_after_a_round(without: int | None = None) -> Any:
    """In one process; shares of the batch are as with all clients."""
    there = [client for client in clients_of_sizes(*SIZES) if client.id != without]
    running = in_one_process("fed-scan", {}, there, samples=sum(SIZES))
    # In this round nobody knows yet that one is away, and the others do not fill the batch.
    running._samples = lambda members: sum(SIZES)  # type: ignore[method-assign]
    return running.run_round(running.algorithm.initial_state(Randomness(0)), 0)[0]


def test_below_the_threshold_there_is_no_sum_and_the_state_stays(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    state = deployed.algorithm.initial_state(Randomness(0))
    grid.away |= {"client 2", "client 3"}
    after, report = deployed.run_round(state, 0)
    assert_same_state(replace(after, descent=state.descent), state)
    assert report.refused.keys() == {0, 1}
    assert "2 clients at the stage of keys, and it needs 3" in report.refused[0][0]
    assert report.absent.keys() == {2, 3}
    assert "keys of the secure sum: it is not online" in report.absent[2][0]


@pytest.mark.parametrize("stage", ["shares", "under masks", "agreement", "unmasking"])
def test_a_client_does_each_stage_once(stage: str, tmp_path: Path) -> None:
    """A second vector would have the same masks; shares for other clients would take others off."""
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    again: list[Packet] = []

    def twice(packet: Packet) -> Packet:
        again.append(resent(grid.workers["client 1"], grid.requests[-1][1]))
        return packet

    grid.tampering["client 1"] = at_stage(grid, stage, twice)
    state = deployed.algorithm.initial_state(Randomness(0))
    after, report = deployed.run_round(state, 0)
    assert len(again) == len(grid.requests) / len(SIZES) / EXCHANGES_OF_A_SUM
    assert {json.loads(answer.header)["status"] for answer in again} == {"refused"}
    assert not any(answer.payload for answer in again)
    assert not report.refused
    assert_same_state(after, state_after_a_round())


def test_a_client_keeps_to_the_number_of_clients() -> None:
    """The threshold and the size of numbers follow from it."""
    part = Participants(PrivacyConfig(secure_sums=True), 4, Safeguard())
    task, client = Task("fed-scan", "statistics", 0, 0), clients_of_sizes(5)[0]
    for asked in (0, 1, 5):
        with pytest.raises(RefusedUpdateError, match=f"sum of {asked} of 4 clients"):
            part.send_keys(task, Begun(numbers_of(range(asked))), client.id)
    with pytest.raises(RefusedUpdateError, match="sum of 2 of 4 clients"):
        part.send_keys(task, Begun(numbers_of([1, 2])), client.id)
    with pytest.raises(RefusedUpdateError, match="a client is there twice"):
        part.send_keys(task, Begun(numbers_of([0, 1, 1])), client.id)
    part.send_keys(task, Begun(numbers_of([0, 1, 2])), client.id)
    terms = part.of(task, client.id).terms
    others = {n: Participant(n, terms, [0, 1, 2]).keys() for n in (1, 2, 3)}
    known = {n: Neighbour(keys.public, keys.signature, True) for n, keys in others.items()}
    with pytest.raises(RefusedUpdateError, match="list of keys is not sound"):
        part.send_shares(task, letters_of_neighbours({0: known}), client.id)
    part.send_keys(task, Begun(numbers_of([0, 1, 2])), client.id)
    del known[3]
    boxes = part.send_shares(task, letters_of_neighbours({0: known}), client.id)
    assert boxes.read(BOX_BYTES).keys() == {1, 2}


@pytest.mark.parametrize("privacy", [{"secure_sums": True}, {"level": "client"}])
def test_what_serves_a_report_alone_is_not_sent(privacy: Tree) -> None:
    """In one process it does not travel; over a network nothing would hide it."""
    clients = clients_of_sizes(10, 10, 10)
    plain = made(tiny("ppfc-gan"), samples=30).client_side(ClientContext(10, 1)).works
    assert not plain[GAN_EPOCH.name].exchange.travels
    config = tiny("ppfc-gan", {"privacy": privacy, "device": "cpu"})
    images = ImageData("images", clients[0].images, None, ())
    here = make_client_run(spec_of(config, clients, clusters=3), images, CPU)
    here.prepare()
    kept = here.works(least=0, sends_counts=True)
    assert len(kept) > 1
    assert GAN_EPOCH.name not in kept


def rows(dtype: torch.dtype, width: int, numbers: Sequence[int] = (1, 2)) -> ClientRows:
    return ClientRows(numbers_of(numbers), torch.zeros(2, width, dtype=dtype))


SHARES = rows(torch.uint8, SHARE_BYTES)
NO_SHARES = ClientRows.of({}, SHARE_BYTES)
BEYOND = torch.full((SHARE_BYTES // 4,), PRIME, dtype=torch.int32).view(1, -1)


BYTES = torch.zeros(200, dtype=torch.uint8)
SOUND = Keys(BYTES[:PUBLIC_BYTES], numbers_of([0, 1]), BYTES[:SIGNATURE_BYTES])


FORMS: list[Callable[[], object]] = [
    *(
        replace(SOUND, **other).read
        for other in (
            {"public": BYTES[: PUBLIC_BYTES - 1]},
            {"public": torch.zeros(PUBLIC_BYTES)},
            {"signature": BYTES[: SIGNATURE_BYTES + 1]},
            {"signature": torch.zeros(SIGNATURE_BYTES)},
            {"holders": numbers_of([1, 1])},
            {"holders": numbers_of([1, -1])},
            {"holders": torch.tensor([1.0, 2.0])},
            {"holders": numbers_of([1, 2]).view(1, 2)},
        )
    ),
    *(
        partial(boxes.read, BOX_BYTES)
        for boxes in (
            rows(torch.uint8, BOX_BYTES, [1, 1]),
            rows(torch.uint8, BOX_BYTES + 1),
            rows(torch.int8, BOX_BYTES),
            ClientRows(torch.tensor([1.0, 2.0]), torch.zeros(2, BOX_BYTES, dtype=torch.uint8)),
        )
    ),
    *(
        shares.read
        for shares in (
            ShownShares(rows(torch.uint8, SHARE_BYTES - 1), NO_SHARES),
            ShownShares(NO_SHARES, rows(torch.uint8, SHARE_BYTES, [2, 2])),
            ShownShares(NO_SHARES, replace(SHARES, clients=numbers_of([1, 2]).view(2, 1))),
            ShownShares(NO_SHARES, rows(torch.float64, SHARE_BYTES)),
            ShownShares(NO_SHARES, rows(torch.int32, SHARE_BYTES)),
            ShownShares(ClientRows(numbers_of([1]), BEYOND.view(torch.uint8)), NO_SHARES),
        )
    ),
]


@pytest.mark.parametrize("read", FORMS, ids=str)
def test_keys_boxes_and_shares_of_another_form_are_refused(read: Callable[[], object]) -> None:
    assert SOUND.read().holders == [0, 1]
    with pytest.raises(RefusedUpdateError):
        read()


def test_a_run_with_secure_sums_can_be_asked_for_nothing_else(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    deployed.run_round(deployed.algorithm.initial_state(Randomness(0)), 0)
    name, order = next((n, p) for n, p in grid.requests if b"under masks" in p.header)
    plain = json.loads(order.header)["exchange"].removesuffix(" under masks")
    answer = resent(grid.workers[name], order, exchange=plain)
    assert json.loads(answer.header)["status"] == "refused"


def test_an_owner_can_allow_secure_sums_alone(tmp_path: Path) -> None:
    said: list[str] = []
    for sums in (True, False):
        grid = grid_of(labelled_clients(30, 25, 20), tmp_path / str(sums))
        for worker in grid.workers.values():
            worker.rules = trusting(smallest_count=0, only_secure_sums=True)
            worker.say = said.append
        tree: Tree = {"clusters": 3, "device": "cpu", "privacy": {"secure_sums": sums}}
        if sums:
            assert len(experiment_on(grid, tiny("fed-scan", tree)).members) == 3
            continue
        with pytest.raises(UsageError, match="3 of 3 clients cannot take part"):
            experiment_on(grid, tiny("fed-scan", tree))
    refused = [line for line in said if "forbidden" in line]
    assert all("its owner allows secure sums alone (--only-secure-sums)" in it for it in refused)
    assert len(refused) == 3


PRIVATE: Tree = {"level": "client", "reproducible_noise": True, "noise": 0.01, "epsilon": 1e9}


@pytest.mark.parametrize("privacy", [{}, PRIVATE], ids=["sums", "sums with noise"])
@pytest.mark.parametrize("method", ["fed-scan", "fedavg"])
def test_a_deployed_run_ends_as_one_in_a_process(
    method: str, privacy: Tree, tmp_path: Path
) -> None:
    """Noise comes from the seed here, so that both have the same."""
    if privacy:
        pytest.importorskip("dp_accounting")
    clients = labelled_clients(30, 25, 20)
    config = config_of(method, privacy)
    grid = grid_of(clients, tmp_path, tested=method == "fedavg")
    experiment = experiment_on(grid, config)
    summary = run(experiment, tmp_path / "run")
    assert summary["privacy"]["secure_sums"] is True
    assert summary["privacy"].get("level") == privacy.get("level")
    assert summary["refused_updates"] == 0
    assert (tmp_path / "run" / "privacy.jsonl").exists() == bool(privacy)
    beside = experiment_on(grid, config)
    assert beside.protection is not None
    mechanism: Any = beside.protection.mechanism
    alone = one_by_one(beside.spec, beside.algorithm, clients, mechanism=mechanism)
    state, _ = list(alone.run(alone.algorithm.initial_state(Randomness(config.seed))))[-1]
    found, expected = split_model(load_file(tmp_path / "run" / "model.safetensors"))[0], pack(state)
    assert found.keys() == expected.keys()
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []


def config_of(method: str, privacy: Tree) -> RunConfig:
    if method == "fed-scan":
        return tiny(method, SUMS, {"clusters": 3, "privacy": privacy})
    settings = [f"privacy.{key}={value}" for key, value in {"secure_sums": True, **privacy}.items()]
    return small_config(f"method={method}", "device=cpu", "compute.cohort=1", *settings)
