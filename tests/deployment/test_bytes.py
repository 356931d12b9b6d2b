"""Whatever bytes come, a reader refuses them in its own way, soon, and in little memory."""

import json
import socket
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

pytest.importorskip("flwr")

from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from ccfcpp.clustering.model import load_model
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import save_tensors
from ccfcpp.data.image_size import Sizes
from ccfcpp.deployment.client.answered_requests import AnsweredRequests
from ccfcpp.deployment.client.audit import AuditEntry, AuditLog
from ccfcpp.deployment.client.privacy_spent import Spending
from ccfcpp.deployment.client.rules import ForbiddenError, Rules, read_rules
from ccfcpp.deployment.client.state_files import LostMemoryError, MemoryStore
from ccfcpp.deployment.link.fleet_calls import PATHS
from ccfcpp.deployment.link.flower import decode_packet, payload_record, to_records
from ccfcpp.deployment.link.messages import (
    MessageError,
    Request,
    Response,
    deserialize,
    new_token,
    serialize,
)
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.link.run_spec import Facts, RunSpec
from ccfcpp.deployment.server import connections
from ccfcpp.deployment.server.admission import Admission
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.gate_server import GateSetting
from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ccfcpp.engine.client import Member
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.runs.folder import RunFolder
from supervised.messages import LocalUpdate
from tests.deployment.test_gate import FakeFleet, trusting
from tests.support.classification import labelled_clients
from tests.support.clustering import tiny
from tests.support.deployment import Told, worker_of
from tests.support.federation import CPU
from tests.support.fuzz import CLASSES, DEEP, bytes_like, examples, json_like
from tests.support.gates import open_gate, served

SPEC = RunSpec(command="cluster", config={"method": "km", "seed": 3}, image_shape=(1, 8, 8))
FACTS = Facts(samples=10, sizes=Sizes.of([(8, 8)] * 10, colour=False), classes=("a", "b"))
REQUEST = Request(
    kind="work", run=new_token(), nonce=new_token(), spec=SPEC, exchange="images", round=3
)
RESPONSE = Response(nonce=REQUEST.nonce, facts=FACTS, remembers=True)
UPDATE = LocalUpdate({"a.weight": torch.ones(3, 2), "b": torch.zeros(4)}, 12, 3, 0.5)
MOST_MEMORY, MOST_SECONDS = 200 * 2**20, 20.0


def headers(valid: bytes) -> st.SearchStrategy[bytes]:
    return bytes_like(valid) | json_like(valid) | st.sampled_from(DEEP)


# --- what comes over the network -----------------------------------------------------------------


@examples(75)
@given(headers(REQUEST.to_json()))
def test_a_request_is_read_or_refused(content: bytes) -> None:
    with suppress(MessageError):
        Request.read(content)


@examples(75)
@given(headers(RESPONSE.to_json()))
def test_a_response_is_read_or_refused(content: bytes) -> None:
    with suppress(MessageError):
        Response.read_reply(REQUEST, content)


@examples(100)
@given(bytes_like(serialize(UPDATE)))
def test_a_payload_is_read_or_refused(content: bytes) -> None:
    with suppress(MessageError):
        deserialize(LocalUpdate, content, CPU)


def listed(names: object, rest: bytes = b"") -> bytes:
    """A safetensors file with such a list of tensors."""
    text = names if isinstance(names, bytes) else json.dumps(names).encode()
    return len(text).to_bytes(8, "little") + text + rest


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


LYING: dict[str, bytes] = {
    "a length beyond the file": (2**40).to_bytes(8, "little") + b"{}",
    "the largest length": b"\xff" * 8 + b"{}",
    "a shape of 2**63": listed({"samples": tensor([2**63], 0, 4)}, b"\0" * 4),
    "no row of 2**62": listed({"samples": tensor([0, 2**62], 0, 0)}),
    "no row of 2**64": listed({"samples": tensor([0, 2**64 - 1], 0, 0)}),
    "a shape below 0": listed({"samples": tensor([-1], 0, 4)}, b"\0" * 4),
    "offsets beyond the file": listed({"samples": tensor([10**9], 0, 4 * 10**9)}, b"\0" * 4),
    "offsets backwards": listed({"samples": tensor([1], 4, 0)}, b"\0" * 4),
    "two in one place": listed({n: tensor([1], 0, 4) for n in ("samples", "steps")}, b"\0" * 4),
    "many axes": listed({"samples": tensor([1] * 5000, 0, 4)}, b"\0" * 4),
    "many tensors of nothing": listed({f"{n}": tensor([0], 0, 0) for n in range(40_000)}),
    "another type": listed({"samples": tensor([1], 0, 1, "F4")}, b"\0"),
    "no type": listed({"samples": tensor([1], 0, 1, "pickle")}, b"\0"),
    "facts of its own": listed({"__metadata__": {"a": {"b": []}}}),
    "a list": listed(b"[" * (2**22 - 1)),
    "many small lists": listed(b"[" + b"[]," * (2**20) + b"[]]"),
    "many small objects": listed(b"[" + b"{}," * (2**20) + b"{}]"),
    "a number of a million digits": listed(b'{"a":' + b"9" * 10**6 + b"}"),
    "a name of a million letters": listed({"a" * 10**6: tensor([0], 0, 0)}),
}


@pytest.mark.parametrize("lie", LYING)
def test_a_payload_that_lies_is_refused_in_little_memory(lie: str) -> None:
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(MessageError) as found:
            deserialize(LocalUpdate, LYING[lie], CPU)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < MOST_SECONDS
    assert str(found.value).isprintable()
    assert len(str(found.value)) <= 200


@examples(50)
@given(headers(RESPONSE.to_json()))
def test_one_clients_facts_are_its_own_matter(content: bytes) -> None:
    told = Told()
    admission = Admission(("a", "b"), None, told)
    admission.record_answer("a", REQUEST, Packet(content))
    admission.record_answer("b", REQUEST, Packet(RESPONSE.to_json()))
    assert admission.is_complete
    assert "b" in admission.admitted() or "a" in admission.admitted()
    assert all(line.isprintable() for line in told.lines)


@examples(30)
@given(data=st.data())
def test_a_worker_answers_whatever_is_asked(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Settings are the server's choice: they stay as they are."""
    (client,) = labelled_clients(20)
    worker = worker_of(client, tmp_path_factory.mktemp("worker"), CLASSES)
    spec = SPEC.model_copy(
        update={"config": tiny("km").model_dump(mode="json"), "clusters": 3, "clients": 1}
    )
    request = REQUEST.model_copy(update={"spec": spec, "nonce": new_token()})
    written = request.to_json()
    header = data.draw(st.just(written) | st.binary(max_size=99) | json_like(written, ("charter",)))
    payload = data.draw(bytes_like(save({"x": torch.zeros(3)})))
    answer = worker.answer(Packet(header, payload))
    assert Response.read(answer.header).status in ("done", "refused", "failed")


@examples(30)
@given(st.data())
def test_objects_that_are_no_packet_are_none(data: st.DataObject) -> None:
    record = to_records(b"header", payload_record(b"payload"))
    objects = {name: each.deflate() for name, each in get_all_nested_objects(record).items()}
    name = data.draw(st.sampled_from(sorted(objects)))
    objects[name] = data.draw(bytes_like(objects[name]))
    assert decode_packet(record.object_id, objects) is None


# --- the gate ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gate(keys: Path) -> Iterator[tuple[int, FakeFleet]]:
    """The port of a gate, and what is behind it."""
    fleet = FakeFleet()
    files = keys / "server.crt", keys / "server.key"
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as folder,
        served(fleet, uds=f"{folder}/f"),
    ):
        patch.setattr(connections, "_PATIENCE", 0.3)
        with open_gate(GateSetting("127.0.0.1", 0, *files, Path(folder) / "f")) as port:
            yield port, fleet


REQUESTS = (
    b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: server.example.org\r\n"
    b"content-length: 1\r\nconnection: close\r\n\r\na"
)


def told(keys: Path, port: int, content: bytes, over_tls: bool) -> bytes:
    """What the gate answers to some bytes."""
    found = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as plain:
        context = trusting(keys)
        connection: socket.socket = plain
        if over_tls:
            connection = context.wrap_socket(plain, server_hostname="server.example.org")
        with connection:
            connection.settimeout(10)
            connection.sendall(content)
            if not over_tls:
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(65536):
                found += part
    return found


@examples(12)
@given(content=bytes_like(REQUESTS), over_tls=st.sampled_from([True, True, True, False]))
def test_the_gate_goes_on_whatever_comes(
    keys: Path, gate: tuple[int, FakeFleet], content: bytes, over_tls: bool
) -> None:
    port, fleet = gate
    told(keys, port, content, over_tls)
    assert told(keys, port, REQUESTS, True).startswith(b"HTTP/1.1 200")
    assert {path for path, *_ in fleet.seen} <= set(PATHS)


# --- files ---------------------------------------------------------------------------------------


def _checkpoint(path: Path) -> None:
    save_checkpoint(path, Checkpoint(3, UPDATE, {0: "client-0"}, {"seconds": 1.0}))


def _memory(path: Path) -> None:
    save_tensors(path, {"a": torch.ones(3)})


def _enrolment(path: Path) -> None:
    Enrolment(new_token(), SPEC, (Member(0, "a", 20),), 1.0).save(path)


def _audit(path: Path) -> None:
    log = AuditLog(path.parent)
    log.add(AuditEntry("here", new_token(), "km", ("models",), "images", 0, "done"))
    (path.parent / "audit.jsonl").rename(path)


def _answered(path: Path) -> None:
    AnsweredRequests(path.parent).record(REQUEST, None)
    (path.parent / "answered" / f"{REQUEST.run}.json").rename(path)


def _read_answered(path: Path) -> None:
    folder = path.parent / "answered"
    folder.mkdir(exist_ok=True)
    path.rename(folder / f"{REQUEST.run}.json")
    with suppress(MessageError, ForbiddenError):
        AnsweredRequests(path.parent).check(REQUEST, Rules(restarts=0, most_exchanges=1), None)


def _read_memory(path: Path) -> None:
    path.rename(path.parent / "run-r" / "1.safetensors")
    MemoryStore(path.parent, CPU).load("r", "1")


def _take_memory(path: Path) -> None:
    memories = ClientMemories(CPU, 10**6, path.parent)
    memories.restore({0: path.name})
    memories.take(0)


FILES: dict[str, tuple[Callable[[Path], object], Callable[[Path], object], type[Exception]]] = {
    "checkpoint": (_checkpoint, lambda p: load_checkpoint(p, LocalUpdate, CPU), UsageError),
    "memory of a run": (_memory, _take_memory, UsageError),
    "memory of a client": (_memory, _read_memory, LostMemoryError),
    "enrolment": (_enrolment, Enrolment.load, UsageError),
    "log": (
        _audit,
        lambda p: list(AuditLog(p.rename(p.parent / "audit.jsonl").parent).read()),
        UsageError,
    ),
    "answered": (_answered, _read_answered, UsageError),
    "spending": (
        lambda p: (
            p.write_text('{"run": "a", "noise": 1, "sampled": 1, "follows": false}\n') and None
        ),
        lambda p: Spending(p.rename(p.parent / "privacy.jsonl").parent),
        UsageError,
    ),
    "rules": (
        lambda p: p.write_text("allow: [counts]\nsmallest_count: 3\n"),
        lambda p: read_rules(p, {}),
        UsageError,
    ),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_read_or_named(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    write, read, refusal = FILES[kind]
    valid = tmp_path_factory.mktemp("valid") / "file.safetensors"
    write(valid)
    content = valid.read_bytes()
    folders = iter(range(10**6))
    place = tmp_path_factory.mktemp("changed")

    @examples(30)
    @given(bytes_like(content))
    def survives(changed: bytes) -> None:
        folder = place / str(next(folders))
        (folder / "run-r").mkdir(parents=True)
        path = folder / "file.safetensors"
        path.write_bytes(changed)
        with suppress(refusal):
            read(path)

    survives()


@examples(15)
@given(data=st.data())
def test_a_model_is_read_or_named(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = RunFolder.create(tmp_path_factory.mktemp("run") / "run", tiny("ffcm-km"))
    save_tensors(folder.model, {"centroids": torch.zeros(3, 64)}, {"image_shape": "[1, 8, 8]"})
    folder.model.write_bytes(data.draw(bytes_like(folder.model.read_bytes())))
    with suppress(UsageError):
        load_model(folder.path, "cpu")
