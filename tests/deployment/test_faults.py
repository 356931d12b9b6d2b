"""What goes wrong on the way is refused with a reason, and the round goes on."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.cache import cache_folder, cached
from ccfcpp.data.open import AnyData
from ccfcpp.deployment.client.audit import AuditLog
from ccfcpp.deployment.link import messages
from ccfcpp.deployment.link.messages import Response
from ccfcpp.deployment.link.packet import MOST_HEADER_BYTES, Packet, Undelivered
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.transport import Deployed
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Nothing, Task
from ccfcpp.engine.federation import Federation, RoundReport
from tests.deployment.test_experiment import experiment_on, grid_of
from tests.support.classification import labelled_clients, small_algorithm, small_config
from tests.support.clustering import clients_of_sizes, made, tiny
from tests.support.deployment import (
    Grid,
    deployed,
    one_by_one,
    resent,
    spec_of,
    worker_of,
)
from tests.support.federation import assert_same_bits

CLASSES = [str(number) for number in range(10)]
VICTIM = "client 1"


def scaffold(folder: Path, rounds: int = 2) -> tuple[Federation[Any, Deployed], Grid, list[Client]]:
    """Three clients that remember control variates."""
    clients = labelled_clients(20, 15, 12)
    config = small_config("method=scaffold", f"training.rounds={rounds}", "compute.cohort=1")
    spec = spec_of(config, clients, classes=CLASSES)
    return *deployed(spec, small_algorithm(config, 3), clients, folder), clients


def begin(federation: Federation[Any, Any]) -> Any:
    return federation.algorithm.initial_state(Randomness(0))


def without_the_victim(folder: Path, rounds: int) -> list[tuple[Any, RoundReport]]:
    federation, grid, _ = scaffold(folder, rounds)
    grid.away.add(VICTIM)
    return list(federation.run(begin(federation)))


def tensors(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Packet], Packet]:
    def tampered(packet: Packet) -> Packet:
        # Where a client has declined there is nothing to change.
        if not packet.payload:
            return packet
        return packet._replace(payload=save(change(load(packet.payload))))

    return tampered


def nan(content: dict[str, Tensor]) -> dict[str, Tensor]:
    return content | {"loss": torch.tensor(float("nan"), dtype=torch.float64)}


def renamed(content: dict[str, Tensor]) -> dict[str, Tensor]:
    first = next(name for name in content if name.startswith("model/"))
    return {name: t for name, t in content.items() if name != first}


def twice(packet: Packet) -> Packet:
    length = int.from_bytes(packet.payload[:8], "little")
    names, rest = packet.payload[8 : 8 + length].rstrip(), packet.payload[8 + length :]
    first = json.dumps(next(iter(json.loads(names).items())))[1:-1].replace(",", ":", 1)
    more = names[:-1] + b"," + first.encode() + b"}"
    return packet._replace(payload=len(more).to_bytes(8, "little") + more + rest)


FAULTS: dict[str, tuple[Callable[[Packet], Any], str]] = {
    "NaN": (tensors(nan), "loss holds NaN or Inf"),
    "another shape": (
        tensors(lambda c: c | {"samples": c["samples"].unsqueeze(0)}), "'samples' is torch.int64"),
    "another type": (
        tensors(lambda c: c | {"samples": c["samples"].double()}), "'samples' is torch.float64"),
    "an extra name": (tensors(lambda c: c | {"evil": torch.zeros(1)}), "has no 'evil'"),
    "a name that would colour a terminal": (
        tensors(lambda c: c | {"\x1b[31m\n": torch.zeros(1)}), "has no '\\x1b[31m\\n'"),
    "such a name inside": (
        tensors(lambda c: c | {"model/\x1b[31m": torch.zeros(1)}), "'model/\\x1b[31m' is torch"),
    "an extra name inside": (
        tensors(lambda c: c | {"steps/evil": torch.zeros(1)}), "has no 'steps/evil'"),
    "a missing name": (tensors(renamed), "is missing, expected"),
    "another client's samples": (
        tensors(lambda c: c | {"samples": c["samples"] + 5}), "it claims 20 samples"),
    "a name that is there twice": (twice, "its list of tensors is of another form"),
    "no safetensors file": (lambda p: p._replace(payload=b"x" * 100), "its list of tensors"),
    "code": (lambda p: p._replace(payload=b"\x80\x04cos\nsystem\n."), "its list of tensors"),
    "half of it": (lambda p: p._replace(payload=p.payload[:-7]), "it is no safetensors file"),
    "nothing": (lambda p: Packet(p.header), "is of another form"),
    "no header": (lambda p: Packet(b"", p.payload), "its header is of another form"),
    "a header too long": (lambda p: Packet(b" " * (MOST_HEADER_BYTES + 1)), "its header has"),
    "a deep header": (lambda p: Packet(b"[" * 100_000), "its header is of another form"),
    "an unknown field": (
        lambda p: p._replace(header=b'{"nonce":"' + b"0" * 32 + b'","x":1}'), "of another form"),
    "another nonce": (
        lambda p: p._replace(header=Response(nonce="0" * 32).to_json()),
        "it answers another request"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_round_goes_on(fault: str, tmp_path: Path) -> None:
    tampering, reason = FAULTS[fault]
    federation, grid, _ = scaffold(tmp_path / "a", rounds=1)
    grid.tampering[VICTIM] = tampering
    ((state, report),) = federation.run(begin(federation))
    assert list(report.refused) == [1]
    (said,) = report.refused[1]
    assert reason in said
    assert said.isprintable()
    assert report.absent == {}
    ((expected, _),) = without_the_victim(tmp_path / "b", 1)
    assert all(torch.equal(state.model[name], expected.model[name]) for name in state.model)


def test_what_is_too_large_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, grid, clients = scaffold(tmp_path, rounds=1)

    def limit(packet: Packet) -> Packet:
        """From the last answer on, so that no worker refuses what the server sends."""
        assert all(name in grid.answers for name in ("1", "2"))
        monkeypatch.setattr(messages, "MOST_PAYLOAD_BYTES", 100)
        return packet

    grid.tampering[clients[-1].name] = limit
    rounds = federation.run(begin(federation))
    _, report = next(rounds)
    with pytest.raises(FederationError, match="all updates were refused in round 1"):
        next(rounds)
    assert all("bytes, over 100" in said for (said,) in report.refused.values())
    assert len(report.refused) == 3


def test_an_answer_that_was_given_before_is_refused(tmp_path: Path) -> None:
    federation, grid, _ = scaffold(tmp_path)
    first: list[Packet] = []

    def replay(packet: Packet) -> Packet:
        first.append(packet)
        return first[0]

    grid.tampering[VICTIM] = replay
    (_, one), (_, two) = federation.run(begin(federation))
    assert one.refused == {}
    assert two.refused == {1: ["training: it answers another request"]}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, "training: no answer within 0 s"),
        (Undelivered("its node is not reached"), "training: its node is not reached"),
    ],
)
def test_who_does_not_answer_is_absent(
    answer: Undelivered | None, reason: str, tmp_path: Path
) -> None:
    federation, grid, _ = scaffold(tmp_path / "a")
    grid.tampering[VICTIM] = lambda packet: answer
    found = list(federation.run(begin(federation)))
    assert found[0][1].absent == {1: [reason]}
    assert [report.refused for _, report in found] == [{}, {}]
    expected = without_the_victim(tmp_path / "b", 2)
    for (state, report), (other, _) in zip(found, expected, strict=True):
        assert all(torch.equal(state.model[name], other.model[name]) for name in state.model)
        assert report.clients == [0, 2]


def test_an_answer_that_comes_late_is_dropped_and_its_client_asked_again(tmp_path: Path) -> None:
    federation, grid, _ = scaffold(tmp_path, rounds=3)
    transport, late = federation.transport, []

    def hold(packet: Packet) -> None:
        late.append((str(len(grid.requests)), packet))

    grid.tampering[VICTIM] = hold
    rounds = federation.run(begin(federation))
    assert next(rounds)[1].absent == {1: ["training: no answer within 0 s"]}
    assert transport.standings == {0: "waiting", 1: "late", 2: "waiting"}
    busy = next(rounds)[1]
    assert busy.absent == {1: ["training: it is still at work on what it was asked before"]}
    assert [name for name, _ in grid.requests].count(VICTIM) == 1
    del grid.tampering[VICTIM]
    grid.answers.update(late)
    last = next(rounds)[1]
    assert (last.absent, last.refused, last.clients) == ({}, {}, [0, 1, 2])
    assert transport.standings == dict.fromkeys(range(3), "waiting")


def test_while_all_are_late_the_server_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round without anybody would be lost."""
    federation, grid, clients = scaffold(tmp_path)
    late: dict[str, Packet] = {}

    def hold(packet: Packet) -> None:
        late[str(len(grid.requests))] = packet

    grid.tampering = {client.name: hold for client in clients}
    rounds = federation.run(begin(federation))
    assert next(rounds)[1].clients == []
    grid.tampering.clear()
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            grid.answers.update([late.popitem()])

    monkeypatch.setattr("ccfcpp.deployment.server.transport.time.sleep", sleep)
    report = next(rounds)[1]
    assert len(waited) == 3
    assert len(report.clients) == 1
    assert len(report.absent) == 2


def test_who_is_asked_alone_and_gone_is_not_waited_for_while_others_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the one client that a round draws, or whose answer alone was in time."""
    config = tiny("k-fed", {"clusters": 3, "device": "cpu"})
    grid = grid_of(labelled_clients(30, 20, 16), tmp_path)
    transport = experiment_on(grid, config).deployed
    asked = Task("k-fed", next(iter(transport.exchanges)), 0, 0)

    def wait(seconds: float) -> None:
        raise TimeoutError

    monkeypatch.setattr("ccfcpp.deployment.server.transport.time.sleep", wait)
    grid.away = {"client 0"}
    (reply,) = transport.deliver(asked, Nothing(), [transport.everyone[0]])
    assert str(reply.update) == "it is not online"
    grid.away |= {"client 1", "client 2"}
    with pytest.raises(TimeoutError):
        next(transport.deliver(asked, Nothing(), [transport.everyone[0]]))


# --- memory -------------------------------------------------------------------------------------


def test_a_memory_whose_update_was_not_taken_is_forgotten(tmp_path: Path) -> None:
    """The client has moved on, and the server never heard of it."""
    federation, grid, clients = scaffold(tmp_path, rounds=3)
    rounds = federation.run(begin(federation))
    found = [next(rounds)]
    grid.tampering[VICTIM] = lambda packet: Undelivered("its node is not reached")
    found.append(next(rounds))
    del grid.tampering[VICTIM]
    found.append(next(rounds))
    config = small_config("method=scaffold", "training.rounds=3", "compute.cohort=1")
    here = one_by_one(
        spec_of(config, clients, classes=CLASSES), small_algorithm(config, 3), clients
    )
    state = begin(here)
    everybody = dict(here.members)
    for number, (after, _) in enumerate(found):
        here.members = dict(everybody)
        if number == 1:
            del here.members[1]
        state, _ = here.run_round(state, number)
        assert all(torch.equal(after.model[name], state.model[name]) for name in state.model)


def test_a_client_that_is_started_again_goes_on_with_its_memory(tmp_path: Path) -> None:
    whole, _, _ = scaffold(tmp_path / "a", rounds=3)
    expected = list(whole.run(begin(whole)))
    federation, grid, clients = scaffold(tmp_path / "b", rounds=3)
    rounds = federation.run(begin(federation))
    found = [next(rounds)]
    again = worker_of(clients[1], tmp_path / "b", CLASSES)
    grid.workers = {**grid.workers, VICTIM: again}
    assert_same_bits([*found, *rounds], expected)


def test_a_memory_that_is_lost_is_said_and_begun_anew(tmp_path: Path) -> None:
    federation, grid, _ = scaffold(tmp_path, rounds=3)
    rounds = federation.run(begin(federation))
    next(rounds)
    for path in (grid.workers[VICTIM].folder / "memory").rglob("*.safetensors"):
        path.unlink()
    assert next(rounds)[1].refused == {1: ["training: what it remembered is gone: it starts anew"]}
    assert next(rounds)[1].refused == {}


def test_a_server_that_was_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Rounds after the checkpoint are run again, by clients whose memory has moved on."""
    whole, _, _ = scaffold(tmp_path / "a", rounds=4)
    expected = list(whole.run(begin(whole)))
    federation, _, _ = scaffold(tmp_path / "b", rounds=4)
    rounds = federation.run(begin(federation))
    state, _ = next(rounds)
    versions = federation.transport.save()
    federation.transport.settle()
    next(rounds)
    next(rounds)
    # The killed server's tasks are those of another process now.
    before = federation.transport
    transport = Deployed(before.channel, before.spec, before.run, before.exchanges, before.device)
    transport.restore(versions)
    again = Federation(
        federation.system,
        federation.algorithm,
        list(federation.members.values()),
        federation.availability,
        federation.randomness,
        transport,
    )
    assert_same_bits(list(again.run(state, 1)), expected[1:])


def test_only_versions_that_may_be_wanted_are_kept(tmp_path: Path) -> None:
    federation, grid, _ = scaffold(tmp_path, rounds=6)
    for number, _ in enumerate(federation.run(begin(federation))):
        if number == 1:
            kept = set(federation.transport.save().values())
            federation.transport.settle()
    for worker in grid.workers.values():
        there = {path.stem for path in (worker.folder / "memory").rglob("*.safetensors")}
        assert len(there) == 3
        assert len(there & kept) == 1


# --- the worker's side --------------------------------------------------------------------------


def requests_of_a_run(folder: Path) -> tuple[Grid, list[Packet]]:
    federation, grid, _ = scaffold(folder, rounds=1)
    list(federation.run(begin(federation)))
    return grid, [packet for name, packet in grid.requests if name == VICTIM]


def test_a_worker_refuses_a_request_that_has_come_before(tmp_path: Path) -> None:
    grid, (request,) = requests_of_a_run(tmp_path)
    again = Response.read(grid.workers[VICTIM].answer(request).header)
    assert (again.status, again.reason) == ("refused", "this request has come before")


@pytest.mark.parametrize("header", [b"", b"{}", b"[" * 10**5, b"\xff\x00", b'{"kind":"work"}'])
def test_a_worker_answers_whatever_comes(header: bytes, tmp_path: Path) -> None:
    grid, _ = requests_of_a_run(tmp_path)
    answer = Response.read(grid.workers[VICTIM].answer(Packet(header, b"")).header)
    assert answer.status == "failed"
    *_, last = AuditLog(grid.workers[VICTIM].folder).read()
    assert (last.status, last.reason) == ("refused", "its header is of another form")


def test_a_handshake_leaves_no_copy_of_the_images(tmp_path: Path) -> None:
    """A server could begin handshakes with one size after the other."""
    grid, (request,) = requests_of_a_run(tmp_path)
    worker, source = grid.workers[VICTIM], tmp_path / "source"
    source.touch()
    load = worker.load

    def loaded(spec: RunSpec) -> AnyData:
        cached([source], "images", ("images",), lambda: {"images": np.zeros(1)})
        return load(spec)

    worker.load = loaded
    for kind, kept in (("hello", False), ("work", True)):
        answer = resent(worker, request, kind=kind, run="bc"[kept] * 32)
        assert Response.read(answer.header).status == "done"
        assert cache_folder().exists() == kept


@pytest.mark.parametrize("version", ["../../x", "1.0", "1.0." + "0" * 31 + "/", "a"])
def test_no_request_leads_to_another_file(version: str, tmp_path: Path) -> None:
    grid, (request,) = requests_of_a_run(tmp_path)
    answer = resent(grid.workers[VICTIM], request, remembered=version)
    assert Response.read(answer.header).status == "failed"


def test_the_text_of_an_error_stays_with_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, (request,) = requests_of_a_run(tmp_path)
    worker = grid.workers[VICTIM]
    said: list[str] = []
    worker.say = said.append

    def fail(*_: object) -> None:
        raise RuntimeError("/home/someone/photos")

    monkeypatch.setattr(worker, "_work", fail)
    answer = resent(worker, request)
    assert Response.read(answer.header).status == "failed"
    assert b"photos" not in answer.header + answer.payload
    assert "photos" in said[0]


def test_a_client_says_a_line_a_round(tmp_path: Path) -> None:
    clients, config = clients_of_sizes(20, 15), tiny("fed-scan")
    federation, grid = deployed(
        spec_of(config, clients, clusters=3), made(config, samples=35), clients, tmp_path
    )
    said: list[str] = []
    grid.workers[VICTIM].say = said.append
    rounds = list(federation.run(begin(federation)))
    counted = [re.fullmatch(r"round (\d+), (\d+) exchanges: [\d.]+ s, .+ sent", s) for s in said]
    found = [tuple(map(int, each.groups())) for each in counted if each]
    assert [number for number, _ in found] == [1 + number for number in range(len(rounds))]
    assert sum(exchanges for _, exchanges in found) == len(grid.requests) // 2
