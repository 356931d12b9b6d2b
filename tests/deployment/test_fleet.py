"""Clients and server through Flower's fleet calls, over TLS on this machine."""

import asyncio
import hashlib
import shutil
import threading
import time
from base64 import b64encode
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from queue import Queue
from socket import gaierror
from types import NoneType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Error, Message, RecordDict
from flwr.app.message import message as flower_message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PushMessagesRequest,
)
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore import date
from flwr.supercore.inflatable.inflatable_object import get_object_tree, iterate_object_tree
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.client import connection
from ccfcpp.deployment.client import fleet as fleet_client
from ccfcpp.deployment.client.connection import CallSigner, Connection
from ccfcpp.deployment.client.fleet import Answer, FleetClient
from ccfcpp.deployment.client.proxy import explain
from ccfcpp.deployment.keys.certificates import public_pem, read_key
from ccfcpp.deployment.keys.creation import make_authority, make_client, make_server
from ccfcpp.deployment.keys.requests import take_off_roster
from ccfcpp.deployment.keys.roster import read_roster
from ccfcpp.deployment.link.fleet_calls import LARGE, SIGNATURE
from ccfcpp.deployment.link.flower import packet_of, payload_record, to_records
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.link.server_status import HEADER, ServerStatus
from ccfcpp.deployment.server import fleet as server_fleet
from ccfcpp.deployment.server import fleet_app
from ccfcpp.deployment.server.channel import Channel
from ccfcpp.deployment.server.enrolling import wait_for_clients
from ccfcpp.deployment.server.enrolment import Enrolment
from ccfcpp.deployment.server.fleet import Fleet
from ccfcpp.deployment.server.gate import OPEN
from ccfcpp.deployment.server.serving import open_server
from tests.deployment.test_gate import trusting
from tests.support.classification import labelled_clients, small_config
from tests.support.deployment import AT_ONCE, spec_of

CLASSES = [str(number) for number in range(10)]
NAMES = "clinic-1", "clinic-2", "clinic-3"
SECONDS = 60.0


@dataclass
class Owner:
    """What a client has told its owner."""

    lines: Queue[str] = field(default_factory=Queue)
    states: list[str] = field(default_factory=list)
    heard_of: list[ServerStatus] = field(default_factory=list)

    def print_line(self, text: str) -> None:
        self.lines.put(text)

    def show_status(self, text: str) -> None:
        self.states.append(text)

    def show_progress(self, status: ServerStatus) -> None:
        self.heard_of.append(status)

    def next(self) -> str:
        return self.lines.get(timeout=SECONDS)


@dataclass
class Place:
    """A server, and clients in threads of this process."""

    folder: Path
    fleet: Fleet
    port: int
    owners: dict[str, Owner] = field(default_factory=lambda: defaultdict(Owner))

    def made(self, name: str, answer: Answer, keys: Path | None = None) -> FleetClient:
        key = read_key((keys or self.folder) / "clients" / f"{name}.key")
        where, authority = f"127.0.0.1:{self.port}", self.folder / "ca.crt"
        return FleetClient(where, authority, key, answer, self.owners[name])

    @contextmanager
    def client(self, name: str, answer: Answer) -> Iterator[FleetClient]:
        client = self.made(name, answer)
        thread = threading.Thread(target=client.run, name=name)
        thread.start()
        try:
            yield client
        finally:
            client.stop()
            thread.join(SECONDS)
            assert not thread.is_alive()

    def node(self, name: str) -> int:
        found: int = until(lambda: self.fleet.online().get(name))
        return found

    def asked(self, name: str, packet: Packet) -> str:
        ticket = self.fleet.push(self.node(name), packet, SECONDS)
        assert ticket is not None
        return ticket

    def answered(self, ticket: str) -> Packet | Undelivered:
        found: Packet | Undelivered = until(lambda: self.fleet.pull(ticket))
        return found


def until(look: Callable[[], Any]) -> Any:
    """What a function gives, once it gives something."""
    end = time.monotonic() + SECONDS
    while (found := look()) is None:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is to stop ends its call first."""
    monkeypatch.setattr(fleet_app, "_HOLD", 0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = tmp_path_factory.mktemp("fleet") / "keys"
    make_authority(keys, 2)
    make_server(keys, "127.0.0.1", 2)
    for name in NAMES:
        make_client(keys, name)
    return keys


@contextmanager
def opened(folder: Path, logs: Path, port: int = 0) -> Iterator[Place]:
    with open_server(folder, folder / "roster", "127.0.0.1", port, logs) as (fleet, listening):
        yield Place(folder, fleet, listening)


@pytest.fixture
def keys(folder: Path, tmp_path: Path) -> Path:
    """A copy of the keys, whose roster changes."""
    return Path(shutil.copytree(folder, tmp_path / "keys"))


@pytest.fixture(scope="module")
def here(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with opened(folder, tmp_path_factory.mktemp("logs")) as place:
        yield place


def echo(packet: Packet) -> Packet:
    return Packet(b"{}" + packet.header, packet.payload)


# --- what is carried ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 10_000, 12_000_000])
def test_bytes_come_back_as_they_went(here: Place, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + b"a" * (size % 256)
    with here.client("clinic-1", echo), here.client("clinic-2", echo):
        for _ in range(2):
            tickets = [here.asked(name, Packet(b"x", payload)) for name in NAMES[:2]]
            assert [here.answered(ticket) for ticket in tickets] == [Packet(b"{}x", payload)] * 2


def test_nothing_is_left_of_what_was_carried(here: Place) -> None:
    objects = here.fleet.factory.state().object_store
    with here.client("clinic-1", echo):
        for number in range(5):
            here.answered(here.asked("clinic-1", Packet(b"x", bytes([number]) * 9)))
    assert len(list(objects.store)) == 0  # type: ignore[attr-defined]


def test_other_records_are_no_parcel() -> None:
    carried = SimpleNamespace(content=to_records(b"a", payload_record(b"b")))
    assert packet_of(carried) == (b"a", b"b")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="other records"):
        packet_of(SimpleNamespace(content=RecordDict({})))  # type: ignore[arg-type]


def test_a_message_of_another_form_is_refused_and_the_client_goes_on(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with here.client("clinic-1", echo):
        node = here.node("clinic-1")
        with monkeypatch.context() as patch:
            patch.setattr(server_fleet, "to_records", lambda header, payload: RecordDict({}))
            ticket = here.fleet.push(node, Packet(b"x"), SECONDS)
        assert ticket is not None
        # It is the worker that refuses it, and writes it into its log.
        assert here.answered(ticket) == echo(Packet(b""))
        assert here.answered(here.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")


# --- what goes wrong ------------------------------------------------------------------------------


def id_of(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def doubled(levels: int) -> ObjectTree:
    """A tree of a few lines in which each object has the one below it twice."""
    tree = ObjectTree(object_id=id_of(0))
    for level in range(1, levels):
        below = ObjectTree(object_id=id_of(level - 1))
        tree = ObjectTree(object_id=id_of(level), children=[tree, below])
    return tree


def wide(parts: int) -> ObjectTree:
    return ObjectTree(
        object_id=id_of(0),
        children=[ObjectTree(object_id=id_of(number)) for number in range(1, parts)],
    )


@pytest.mark.parametrize(("tree", "refused"), [(doubled(60), False), (wide(10_000), True)])
def test_objects_that_a_client_names_take_no_time_and_little_memory(
    tree: ObjectTree, refused: bool, here: Place
) -> None:
    """Flower would follow each of 2 to the 60 ways; and each object may have megabytes."""
    began, leave = threading.Event(), threading.Event()

    def never(packet: Packet) -> Packet:
        began.set()
        leave.wait(SECONDS)
        return packet

    with here.client("clinic-1", never):
        ticket = here.asked("clinic-1", Packet(b"x"))
        # What is not fetched goes to the client of the next test.
        assert began.wait(SECONDS)
        state = here.fleet.factory.state()
        asked = state.message_ins_store[ticket]  # type: ignore[attr-defined]
        reply = Message(RecordDict({}), reply_to=asked)
        reply.metadata.__dict__["_message_id"] = tree.object_id
        session = state.start_session(asked.metadata.run_id)
        with pytest.raises(ValueError, match="more than 256") if refused else nullcontext():
            state.store_message_and_object_tree(remove_content_from_message(reply), tree, session)
        leave.set()
        assert isinstance(here.fleet.pull(ticket), Undelivered if refused else NoneType)
        state.object_store.delete(tree.object_id)


@contextmanager
def calling(place: Place, name: str = "clinic-1") -> Iterator[tuple[Connection, int]]:
    """A client's own calls, in whatever order, and its node."""
    own = CallSigner(read_key(place.folder / "clients" / f"{name}.key"))
    with Connection(f"127.0.0.1:{place.port}", place.folder / "ca.crt", own) as client:
        node = client.ActivateNode(
            ActivateNodeRequest(public_key=own.public_key, heartbeat_interval=10)
        ).node_id
        yield client, node
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def pushed(asked: Message, node: int, tree: ObjectTree, error: bool = False) -> PushMessagesRequest:
    """A reply of a node, with any tree of objects; its root is the reply's name."""
    content = Error(1, "x") if error else RecordDict({})
    reply = Message(content, reply_to=asked)
    reply.metadata.__dict__["_message_id"] = tree.object_id
    told = reply if error else remove_content_from_message(reply)
    return PushMessagesRequest(
        node=Node(node_id=node), messages_list=[message_to_proto(told)], message_object_trees=[tree]
    )


@pytest.fixture
def asked(here: Place) -> Iterator[tuple[Place, Connection, int, Message, Any]]:
    """A server, a client that was asked something, the message, and the server's objects."""
    with calling(here) as (client, node):
        ticket, state = here.asked("clinic-1", Packet(b"x")), here.fleet.factory.state()
        message = state.message_ins_store[ticket]  # type: ignore[attr-defined]
        yield here, client, node, message, state.object_store.store  # type: ignore[attr-defined]
        here.fleet._forget(ticket)


Asked = tuple[Place, Connection, int, Message, Any]


def test_a_reply_that_is_pushed_again_names_no_more_objects(asked: Asked) -> None:
    _, client, node, message, objects = asked
    before = len(objects)
    tree = wide(5)
    first = client.PushMessages(pushed(message, node, tree))
    assert set(first.objects_to_push) == {id_of(number) for number in range(5)}
    again = client.PushMessages(pushed(message, node, tree))  # as where the answer was lost
    assert set(again.objects_to_push) == set(first.objects_to_push)
    own = message.metadata.message_id
    for root, below in ((id_of(0), id_of(1)), (id_of(9), id_of(1)), (id_of(0), own)):
        more = [ObjectTree(object_id=id_of(number)) for number in range(100, 110)]
        other = ObjectTree(object_id=root, children=[ObjectTree(object_id=below, children=more)])
        with suppress(httpx.HTTPStatusError):
            assert not client.PushMessages(pushed(message, node, other)).objects_to_push
        assert len(objects) == before + 5


def test_objects_below_one_that_has_other_parts_do_not_stay(asked: Asked) -> None:
    place, client, node, message, objects = asked
    leaf, more = id_of(1), [ObjectTree(object_id=id_of(2))]
    tree = ObjectTree(
        object_id=id_of(0),
        children=[ObjectTree(object_id=leaf), ObjectTree(object_id=leaf, children=more)],
    )
    client.PushMessages(pushed(message, node, tree))
    assert id_of(2) in objects
    place.fleet._forget(message.metadata.message_id)
    assert len(objects) == 0


def test_nobody_can_claim_the_objects_of_another(asked: Asked) -> None:
    """Who knows what another will send could say that its parts are others."""
    place, client, node, message, objects = asked
    own = get_object_tree(place.fleet._message(1, Packet(b"{}y", b"known"), SECONDS))
    record = next(part for part in iterate_object_tree(own) if part.children)
    claimed = [ObjectTree(object_id=record.object_id, children=[ObjectTree(object_id=id_of(5))])]
    client.PushMessages(pushed(message, node, ObjectTree(object_id=id_of(0), children=claimed)))
    with place.client("clinic-2", echo):
        packet = Packet(b"y", b"known")
        assert place.answered(place.asked("clinic-2", packet)) == echo(packet)
    place.fleet._forget(message.metadata.message_id)
    assert len(objects) == 0


def test_the_root_of_a_replys_objects_is_the_reply(asked: Asked) -> None:
    _, client, node, message, objects = asked
    before = set(objects)
    changes: list[Callable[[PushMessagesRequest], object]] = [
        lambda push: push.message_object_trees.append(wide(3)),
        lambda push: push.messages_list.append(push.messages_list[0]),
        lambda push: push.message_object_trees.pop(),
        lambda push: push.message_object_trees[0].CopyFrom(ObjectTree(object_id=id_of(8))),
    ]
    for change in changes:
        push = pushed(message, node, wide(3))
        change(push)
        with pytest.raises(httpx.HTTPStatusError, match="403"):
            client.PushMessages(push)
    assert set(objects) == before


def test_nothing_is_left_of_a_reply_that_is_an_error(asked: Asked) -> None:
    place, client, node, message, objects = asked
    client.PushMessages(pushed(message, node, wide(4), error=True))
    assert len(objects) > 4
    found = place.answered(message.metadata.message_id)
    assert found == Undelivered("its node has failed (Flower's error 1)")
    assert len(objects) == 0


def test_nothing_is_left_of_what_nobody_asks_for_any_more(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, client, node, message, objects = asked
    client.PushMessages(pushed(message, node, wide(4)))
    place.fleet.keep_alive()
    assert len(objects) > 4
    late = replace(place.fleet._sent[message.metadata.message_id], until=0.0)
    monkeypatch.setitem(place.fleet._sent, message.metadata.message_id, late)
    place.fleet.keep_alive()
    assert len(objects) == 0
    # Who comes late is answered as before, and leaves nothing.
    assert not client.PushMessages(pushed(message, node, wide(4))).objects_to_push
    assert len(objects) == 0


@pytest.mark.parametrize("path", sorted(OPEN.values()))
def test_a_signature_is_of_one_call(path: str, folder: Path) -> None:
    """Not of its time alone, by which anything could be sent."""
    own = CallSigner(read_key(folder / "clients" / "clinic-1.key"))
    app = fleet_app.fleet_app(Fleet({"clinic-1": own.public_key}))

    def answered(more: dict[str, str], body: bytes = b"whole") -> int:
        headers = own.headers(path, b"whole") | {"content-type": "application/protobuf"} | more
        statuses: list[int] = []
        coming = iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            message = next(coming, None)
            await asyncio.sleep(0 if message else SECONDS)
            return message

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope: dict[str, Any] = {"type": "http", "path": path, "method": "POST", "headers": raw}
        scope |= {"query_string": b"", "raw_path": path.encode(), "root_path": ""}

        async def call() -> None:
            await app(scope, receive, send)

        asyncio.run(call())
        return statuses[0]

    assert answered({}) != 401  # Flower says what else is wrong
    assert answered({}, b"other") == 401
    other = "/v1/fleet/other", b"whole"
    for name, value in (
        (SIGNATURE, own.headers(*other)[SIGNATURE]),
        (SIGNATURE, ""),
        (SIGNATURE, "AAAA"),
        (SIGNATURE, "\u00e4"),
        ("flwr-timestamp", "2026-01-01T00:00:00+00:00"),
    ):
        assert answered({name: value}) == 401


def test_large_bodies_of_a_client_are_read_one_at_a_time(folder: Path) -> None:
    own, path = CallSigner(read_key(folder / "clients" / "clinic-1.key")), sorted(LARGE)[0]
    app = fleet_app.fleet_app(Fleet({"clinic-1": own.public_key}))
    raw = [(k.lower().encode(), v.encode()) for k, v in own.headers(path, b"whole").items()]
    reading = most = 0

    async def call() -> None:
        async def receive() -> Any:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            await asyncio.sleep(0.01)
            reading -= 1
            return {"type": "http.request", "body": b"other"}

        async def send(message: Any) -> None: ...

        await app({"type": "http", "path": path, "method": "POST", "headers": raw}, receive, send)

    async def together() -> None:
        await asyncio.gather(*(call() for _ in range(5)))

    asyncio.run(together())
    assert most == 1


def test_who_comes_back_has_lost_what_was_asked(here: Place) -> None:
    """Flower never tells: the message was delivered, and the node is online."""
    began, leave = threading.Event(), threading.Event()

    def never(packet: Packet) -> Packet:
        began.set()
        leave.wait(SECONDS)
        raise RuntimeError("killed")

    with here.client("clinic-1", never) as client:
        ticket = here.asked("clinic-1", Packet(b"x"))
        assert began.wait(SECONDS)
        assert here.fleet.pull(ticket) is None
        client.stop()
        leave.set()
    with here.client("clinic-1", echo):
        here.node("clinic-1")
        found = here.answered(ticket)
        assert isinstance(found, Undelivered)
        assert here.answered(here.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")
        assert here.fleet.pull(ticket) == Undelivered("it was asked too long ago")


def test_a_message_that_is_withdrawn_while_it_is_fetched_costs_no_connection(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes back what it asked of a client before that was started again."""
    began, withdrawn = threading.Event(), threading.Event()
    fetch = fleet_client._Calls.packet_in

    def late(calls: Any, message: Message, tree: ObjectTree) -> Packet | None:
        began.set()
        assert withdrawn.wait(SECONDS)
        return fetch(calls, message, tree)

    monkeypatch.setattr(fleet_client._Calls, "packet_in", late)
    with here.client("clinic-1", echo):
        first, second = (here.asked("clinic-1", Packet(header)) for header in (b"x", b"y"))
        assert began.wait(SECONDS)
        here.fleet._forget(first)
        withdrawn.set()
        assert here.answered(second) == Packet(b"{}y")


def test_a_client_waits_for_its_server(folder: Path, tmp_path: Path) -> None:
    """It is there before the server, and stays when the server is started again."""
    with opened(folder, tmp_path / "1") as place:
        port = place.port
    owner = place.owners["clinic-1"]
    with place.client("clinic-1", echo):
        assert owner.next().startswith("nobody listens there")
        for number in "23":
            with opened(folder, tmp_path / number, port) as again:
                assert again.answered(again.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")
                # The end of a run is no fault, and what is refused later is not told.
                assert owner.next() == f"{'re' * (number == '3')}connected to 127.0.0.1:{port}"
            assert (
                owner.next() == "the server has ended its run; this client waits for its next one"
            )
    assert owner.states[:2] == ["resolving 127.0.0.1", f"connecting to 127.0.0.1:{port}"]


@pytest.mark.parametrize("hours", [-30_000, -3, 3, 30])
def test_a_clock_that_is_wrong_keeps_no_client_and_no_answer_out(
    hours: int, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower would take an answer's time for over, and drop it without a word."""
    for module in (connection, flower_message):
        monkeypatch.setattr(module, "now", lambda: date.now() + timedelta(hours=hours))
    with here.client("clinic-1", echo):
        assert here.answered(here.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")


def test_a_run_that_flower_has_ended_begins_anew(here: Place) -> None:
    """As when the server's clock is set, or its machine has slept."""
    with here.client("clinic-1", echo):
        here.node("clinic-1")
        state = here.fleet.factory.state()
        for task in state.get_tasks():
            state.finish_task(task.task_id, "failed", "")
        assert here.fleet.push(here.node("clinic-1"), Packet(b"x"), SECONDS) is None
        here.fleet.keep_alive()
        assert here.answered(here.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")


# --- who must not get in --------------------------------------------------------------------------


def test_nobody_without_a_key_can_do_anything(here: Place) -> None:
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    paths = {path for _, path in PROTOBUF_REQUEST_TYPES}
    with httpx.Client(
        base_url=f"https://127.0.0.1:{here.port}",
        verify=trusting(here.folder),
        trust_env=False,
        timeout=30,
    ) as stranger:
        for path in sorted(paths):
            reply = stranger.post(path, headers=headers)
            if path in OPEN.values():
                assert 400 <= reply.status_code < 500, path
            else:
                assert reply.status_code == 404, path
    assert here.fleet.online() == {}


def signed(folder: Path, name: str) -> dict[bytes, bytes]:
    """Headers of a call that a client signs."""
    own = read_key(folder / "clients" / f"{name}.key")
    found = CallSigner(own).headers("/", b"")
    return {key.lower().encode(): value.encode() for key, value in found.items()}


@pytest.mark.parametrize("path", LARGE)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda headers: headers.clear(),
        lambda headers: headers.update({b"flwr-signature": b"AAAA"}),
        lambda headers: headers.update({b"flwr-signature": b"?"}),
        lambda headers: headers.update({b"flwr-timestamp": b"2026-01-01T00:00:00+00:00"}),
        lambda headers: headers.update({b"flwr-public-key": b"AAAA"}),
        lambda headers: None,
    ],
)
def test_nobody_reads_a_large_body_of_a_stranger(
    path: str, spoil: Callable[[dict[bytes, bytes]], None], folder: Path
) -> None:
    known, read, statuses = [f"clinic-{number}" for number in (1, 2)], [], []
    headers = signed(folder, "clinic-3")
    keys = {name: public_pem(read_roster(folder / "roster")[name]) for name in known}
    spoil(headers)

    async def receive() -> Any:
        read.append(path)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    scope = {"type": "http", "path": path, "method": "POST", "headers": list(headers.items())}

    async def call() -> None:
        await fleet_app.fleet_app(Fleet(keys))(scope, receive, send)

    asyncio.run(call())
    assert statuses[0] == 401
    assert read == []


@pytest.mark.parametrize("answers", ["", "none"])
def test_a_client_sends_replies_alone(answers: str, folder: Path, tmp_path: Path) -> None:
    """Flower would keep any other message, in the server's name and without a bound."""
    with opened(folder, tmp_path / "logs") as place:
        message = place.fleet._message(1, Packet(b"x"), SECONDS)
        with calling(place) as (client, node):
            told = message_to_proto(remove_content_from_message(message))
            told.metadata.reply_to_message_id = answers
            told.metadata.src_node_id = 1 if answers else node
            told.metadata.dst_node_id = node if answers else 1
            push = PushMessagesRequest(
                node=Node(node_id=node),
                messages_list=[told],
                message_object_trees=[get_object_tree(message)],
            )
            with pytest.raises(httpx.HTTPStatusError, match="403"):
                client.PushMessages(push)
        assert len(place.fleet.factory.state().object_store) == 0


def test_behind_the_gate_there_is_nothing_else(here: Place) -> None:
    """Not for other users of the machine, and not for this one."""
    headers = {"content-type": "application/protobuf"}
    own = {str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()}
    listening = map(str.split, Path("/proc/self/net/unix").read_text().splitlines())
    # Other processes may test the same.
    places = [
        place
        for *_, number, place in listening
        if place.endswith("/fleet") and f"socket:[{number}]" in own
    ]
    modes = []
    for place in map(Path, places):
        modes.append(place.parent.stat().st_mode & 0o777)
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(place))) as local:
            for path in ("/v1/control/list-runs", "/v1/runtime/acquire-task"):
                assert local.post(f"http://x{path}", headers=headers).status_code == 404
    assert set(modes) == {0o700}


def test_a_key_that_is_not_on_the_roster_is_refused(here: Place, tmp_path: Path) -> None:
    make_client(tmp_path, "clinic-4")
    with pytest.raises(UsageError, match="the server does not know this key"):
        here.made("clinic-4", echo, tmp_path).run()


def test_a_key_that_is_in_use_may_come_free(here: Place) -> None:
    """It is no stranger's: its client may have been killed, and started again."""
    with here.client("clinic-1", echo):
        here.node("clinic-1")
        with Place(here.folder, here.fleet, here.port).client("clinic-1", echo) as second:
            assert second.display.next().startswith("the key is in use")  # type: ignore[attr-defined]


def test_who_is_taken_off_the_roster_is_refused_from_then_on(keys: Path, tmp_path: Path) -> None:
    with opened(keys, tmp_path / "logs") as place:
        owner = place.owners["clinic-1"]
        with place.client("clinic-1", echo), place.client("clinic-2", echo):
            assert place.answered(place.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")
            take_off_roster("clinic-1", keys / "roster")
            place.fleet.keep_alive()
            assert owner.next().startswith("connected")
            assert owner.next().startswith("connection lost: the server ")
            assert place.answered(place.asked("clinic-2", Packet(b"x"))) == Packet(b"{}x")
            assert set(place.fleet.online()) == {"clinic-2"}
        with pytest.raises(UsageError, match="the server does not know this key"):
            place.made("clinic-1", echo).run()


@pytest.mark.parametrize("left", [0, 1])
def test_a_key_whose_client_has_another_is_refused_too(
    left: int, keys: Path, folder: Path, tmp_path: Path
) -> None:
    """Whether or not anybody else is on the roster: a stolen key, and a new one in its place."""
    with opened(keys, tmp_path / "logs") as place:
        for name in NAMES[:1] if left else NAMES:
            take_off_roster(name, keys / "roster")
        if left:
            (keys / "clients" / "clinic-1.key").rename(tmp_path / "stolen.key")
            (keys / "clients" / "clinic-1.pub").unlink(missing_ok=True)
            make_client(keys, "clinic-1")
        place.fleet.keep_alive()
        shutil.copytree(folder / "clients", tmp_path / "old" / "clients")
        with pytest.raises(UsageError, match="the server does not know this key"):
            place.made("clinic-1", echo, tmp_path / "old").run()
        if left:
            with place.client("clinic-2", echo):
                assert place.node("clinic-2")


def test_a_file_that_cannot_be_read_keeps_no_revoked_client_in(
    keys: Path, folder: Path, tmp_path: Path
) -> None:
    roster = keys / "roster"
    with opened(keys, tmp_path / "logs") as place:
        (roster / "other.pub").symlink_to(tmp_path / "nowhere")
        (roster / "clinic-2.pub").write_bytes((roster / "clinic-2.pub").read_bytes()[:9])
        (roster / "clinic-3.pub").write_bytes((roster / "clinic-3.pub").read_bytes() + b"\r\n")
        take_off_roster("clinic-1", roster)
        place.fleet.keep_alive()
        for name in NAMES:
            own = read_key(folder / "clients" / f"{name}.key")
            known = place.fleet.name_of(b64encode(CallSigner(own).public_key))
            assert known == (None if name == "clinic-1" else name)


def test_a_roster_that_cannot_be_read_revokes_nobody(keys: Path, tmp_path: Path) -> None:
    with opened(keys, tmp_path / "logs") as place, place.client("clinic-1", echo):
        place.node("clinic-1")
        (keys / "roster").rename(tmp_path / "elsewhere")
        place.fleet.keep_alive()
        assert place.answered(place.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")


def test_a_server_of_another_authority_is_refused(here: Place, tmp_path: Path) -> None:
    make_authority(tmp_path, 2)
    make_client(tmp_path, "clinic-1")
    with pytest.raises(UsageError, match="the server's certificate is not of this authority"):
        Place(tmp_path, here.fleet, here.port).made("clinic-1", echo).run()


@pytest.mark.parametrize(
    ("error", "text", "final"),
    [
        (gaierror(-2, "Name or service not known"), "there is no host of this name", True),
        (gaierror(-3, "Temporary failure in name resolution"), "cannot be reached", False),
        (ConnectionRefusedError(111, "Connection refused"), "nobody listens there", False),
        (OSError(28, "No space left on device"), "disk is full", False),
        (OSError("[SSL: WRONG_VERSION_NUMBER]"), "is no ccfcpp serve", True),
        (OSError("certificate is not valid for 'x'"), "is for another name", True),
        (OSError("CERTIFICATE_VERIFY_FAILED: certificate has expired"), "has expired", True),
    ],
)
def test_what_only_somebody_can_change_is_final(error: Exception, text: str, final: bool) -> None:
    found = explain(error)
    assert text in found.text
    assert found.final is final


def test_a_name_that_nobody_has_ends_the_client(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*asked: object, **more: object) -> None:
        raise gaierror(-2, "Name or service not known")

    client = here.made("clinic-1", echo)
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(UsageError, match="there is no host of this name"):
        client.run()


# --- how far the server is ------------------------------------------------------------------------


def test_clients_alone_hear_how_far_the_server_is(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = ServerStatus(phase="training", round=3, rounds=9, left=170.0)
    told = [ServerStatus(there=1, wanted=3), training]
    monkeypatch.setattr(here.fleet, "status", lambda: told[0].to_json())
    owner = here.owners["clinic-2"]
    with here.client("clinic-2", echo):
        until(lambda: owner.heard_of[-1:] == [told[0]] or None)
        told.pop(0)
        until(lambda: owner.heard_of[-1:] == [told[0]] or None)
        assert 0 <= here.fleet.seconds_since_call()["clinic-2"] < SECONDS
    assert str(owner.heard_of[-1]) == "training round 4 of 9, about 3 minutes left"
    with httpx.Client(base_url=f"https://127.0.0.1:{here.port}", verify=trusting(here.folder)) as c:
        for path in OPEN.values():
            assert not c.post(path, headers={"content-type": "application/protobuf"}).headers.get(
                HEADER
            )


@pytest.mark.parametrize("text", ["", "{", "[]", '{"phase": "x"}', '{"left": -1}', "1" * 10**6])
def test_news_of_another_form_are_none(text: str) -> None:
    assert ServerStatus.read(text) is None


def test_who_has_a_key_gets_no_code_either(here: Place) -> None:
    own = CallSigner(read_key(here.folder / "clients" / "clinic-1.key"))
    with (
        Connection(f"127.0.0.1:{here.port}", here.folder / "ca.crt", own) as client,
        pytest.raises(httpx.HTTPStatusError, match="404"),
    ):
        client.GetFab(GetFabRequest())


def test_a_run_that_goes_on_waits_for_all_who_took_part(tmp_path: Path) -> None:
    """Else its next round would be without those that come a second later."""
    clients = labelled_clients(20, 15, 12)
    config = small_config("method=fedavg")
    spec = spec_of(config, clients, classes=CLASSES)
    enrolment = Enrolment("a" * 32, spec, tuple(client.member for client in clients), 1.0)
    names = [member.name for member in enrolment.members]
    coming: list[dict[str, int]] = [{}, {"stranger": 9}, {names[0]: 1}, {names[0]: 1, names[1]: 2}]
    everybody = {name: number for number, name in enumerate(names)}
    for least, looks in ((None, 5), (3, 5), (9, 5), (2, 4), (1, 3)):
        seen: list[dict[str, int]] = []

        def online(seen: list[dict[str, int]] = seen) -> dict[str, int]:
            seen.append([*coming, everybody][len(seen)])
            return seen[-1]

        channel = Channel(SimpleNamespace(online=online), AT_ONCE)
        wait_for_clients(channel, enrolment, least)
        assert len(seen) == looks
