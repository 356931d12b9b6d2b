"""Secure sums with clients on other machines: the bits of those in one process, and no summand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.masked_messages import exchanges_under_masks
from ccfcpp.deployment.masked_sums import SummingOverNetwork
from ccfcpp.deployment.parcel import Parcel
from ccfcpp.deployment.transport import Deployed
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Crew
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack
from ccfcpp.engine.transport import InProcess
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.protection import Protection
from tests.deployment.test_experiment import experiment_on, grid_of, run
from tests.support.classification import labelled_clients
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.deployment import AT_ONCE, RUN, Grid, charter_of, worker_of
from tests.support.federation import CPU

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


def over_network(
    method: str, tree: Tree, clients: list[Client], folder: Path
) -> tuple[Federation[Any, Any], Grid]:
    config = tiny(method, SUMS, tree)
    algorithm = made(config, samples=sum(map(len, clients)))
    works = algorithm.client_side(Crew(max(map(len, clients)), 1)).works
    exchanges = {name: work.exchange for name, work in works.items()}
    charter = charter_of(config, clients, clusters=3)
    grid = Grid({client.name: worker_of(client, folder) for client in clients})
    inner = Deployed(grid, charter, RUN, exchanges_under_masks(exchanges), CPU, AT_ONCE)
    summing = SummingOverNetwork(inner, exchanges, config.section(PrivacyConfig))
    return _federation(config, algorithm, clients, summing), grid


def in_one_process(method: str, tree: Tree, clients: list[Client]) -> Federation[Any, Any]:
    config = tiny(method, SUMS, tree)
    algorithm = made(config, samples=sum(map(len, clients)))
    side = algorithm.client_side(Crew(max(map(len, clients)), 1))
    alone = [Client(c.id, c.name, c.images) for c in clients]
    memories = ClientMemories(CPU, 10**9)
    inner = InProcess(alone, side, memories, Randomness(config.seed), merges=False)
    exchanges = {name: work.exchange for name, work in side.works.items()}
    protection = Protection(config.section(PrivacyConfig), method, exchanges, len(clients))
    return _federation(config, algorithm, clients, protection.between(inner))


def _federation(
    config: Any, algorithm: Any, clients: list[Client], transport: Any
) -> Federation[Any, Any]:
    members = [client.member for client in clients]
    seed = Randomness(config.seed)
    return Federation(config.method, algorithm, members, Availability(), seed, transport)


def assert_same(state: Any, other: Any) -> None:
    tensors, others = pack(state), pack(other)
    assert tensors.keys() == others.keys()
    assert [name for name in others if not torch.equal(tensors[name], others[name])] == []


def rounds(federation: Federation[Any, Any]) -> list[Any]:
    return list(federation.run(federation.algorithm.initial_state(Randomness(0))))


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_result_has_the_bits_of_one_process(system: str, tmp_path: Path) -> None:
    clients = clients_of_sizes(*SIZES)
    deployed, grid = over_network(*SYSTEMS[system], clients, tmp_path)
    found, expected = rounds(deployed), rounds(in_one_process(*SYSTEMS[system], clients))
    assert len(found) == len(expected)
    for (state, report), (other, beside) in zip(found, expected, strict=True):
        assert_same(state, other)
        assert report.figures == beside.figures
        assert not report.refused
    asked = {json.loads(parcel.head)["exchange"] for _, parcel in grid.orders}
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


def noting(sent: list[torch.Tensor]) -> Callable[[Parcel], Parcel]:
    def noted(parcel: Parcel) -> Parcel:
        content = load(parcel.payload) if parcel.payload else {}
        names = sorted(name for name in content if name.startswith("words/"))
        sent.extend(content[name].flatten() for name in names)
        return parcel

    return noted


@pytest.mark.parametrize("stage", ["keys", "shares", "under masks", "unmasking"])
def test_who_is_lost_at_a_stage_is_left_out(stage: str, tmp_path: Path) -> None:
    clients = clients_of_sizes(*SIZES)
    deployed, grid = over_network("fed-scan", {}, clients, tmp_path)
    state = deployed.algorithm.initial_state(Randomness(0))
    grid.tampering["client 2"] = losing(grid, stage)
    after, report = deployed.run_round(state, 0)
    assert after.version > state.version
    if stage == "unmasking":  # its numbers are in the sum
        assert report.clients == [0, 1, 2, 3]
    else:
        assert 2 in report.absent
        rest = [client for client in clients if client.id != 2]
        alone = in_one_process_without(rest, sum(SIZES))
        assert_same(after, alone)


def losing(grid: Grid, stage: str) -> Callable[[Parcel], Any]:
    def lost(parcel: Parcel) -> Any:
        asked = json.loads(grid.orders[-1][1].head)["exchange"]
        return None if stage in asked else parcel

    return lost


def in_one_process_without(rest: list[Client], samples: int) -> Any:
    """The state after a round of the clients that are left; shares of the batch are as with all."""
    config = tiny("fed-scan", SUMS)
    algorithm = made(config, samples=samples)
    side = algorithm.client_side(Crew(max(SIZES), 1))
    inner = InProcess(rest, side, ClientMemories(CPU, 10**9), Randomness(config.seed), merges=False)
    exchanges = {name: work.exchange for name, work in side.works.items()}
    protection = Protection(config.section(PrivacyConfig), "fed-scan", exchanges, len(rest))
    federation = _federation(config, algorithm, rest, protection.between(inner))
    return federation.run_round(algorithm.initial_state(Randomness(0)), 0)[0]


def test_below_the_threshold_there_is_no_sum_and_the_state_stays(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    state = deployed.algorithm.initial_state(Randomness(0))
    grid.away |= {"client 2", "client 3"}
    after, report = deployed.run_round(state, 0)
    assert_same(after, state)
    assert "2 clients at the stage of keys, and it needs 3" in str(report.refused)


def test_a_client_reveals_shares_once_and_only_of_the_sum_that_goes_on(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    deployed.run_round(deployed.algorithm.initial_state(Randomness(0)), 0)
    name, order = next(
        (name, parcel) for name, parcel in grid.orders if b"unmasking" in parcel.head
    )
    head = json.loads(order.head) | {"nonce": "b" * 32}
    answer = grid.workers[name].answer(order._replace(head=json.dumps(head).encode()))
    assert json.loads(answer.head)["status"] == "refused"
    assert not answer.payload


def test_a_run_with_secure_sums_can_be_asked_for_nothing_else(tmp_path: Path) -> None:
    deployed, grid = over_network("fed-scan", {}, clients_of_sizes(*SIZES), tmp_path)
    deployed.run_round(deployed.algorithm.initial_state(Randomness(0)), 0)
    name, order = next((n, p) for n, p in grid.orders if b"under masks" in p.head)
    head = json.loads(order.head)
    plain = head | {"nonce": "c" * 32, "exchange": head["exchange"].removesuffix(" under masks")}
    answer = grid.workers[name].answer(order._replace(head=json.dumps(plain).encode()))
    assert json.loads(answer.head)["status"] == "refused"


def test_an_owner_can_allow_secure_sums_alone(tmp_path: Path) -> None:
    said: list[str] = []
    for sums in (True, False):
        grid = grid_of(labelled_clients(30, 25, 20), tmp_path / str(sums))
        for worker in grid.workers.values():
            worker.only_secure_sums = True
            worker.say = said.append
        tree: Tree = {"clusters": 3, "device": "cpu", "privacy": {"secure_sums": sums}}
        if sums:
            assert len(experiment_on(grid, tiny("fed-scan", tree)).members) == 3
            continue
        with pytest.raises(UsageError, match="3 of 3 clients cannot take part"):
            experiment_on(grid, tiny("fed-scan", tree))
    assert all("its owner allows secure sums alone (--only-secure-sums)" in line for line in said)
    assert len(said) == 3


def test_a_deployed_run_ends_as_one_in_a_process(tmp_path: Path) -> None:
    clients = labelled_clients(30, 25, 20)
    tree: Tree = {"clusters": 3, "device": "cpu", "privacy": {"secure_sums": True}}
    grid = grid_of(clients, tmp_path)
    summary = run(experiment_on(grid, tiny("fed-scan", tree)), tmp_path / "run")
    assert summary["privacy"]["secure_sums"] is True
    assert summary["refused_updates"] == 0
    assert summary["bytes_up"] > 0
