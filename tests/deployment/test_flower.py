"""The parts that touch Flower, with its own serialisation and without its processes."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.client.app import exchange
from ccfcpp.deployment.link.flower import packet_of, record_of
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.link.sockets import FlowerLink, answer_forever, listen
from ccfcpp.deployment.server import app as server_app
from ccfcpp.deployment.server.app import relay
from ccfcpp.deployment.server.enrolment import Enrolment, wait_for_clients
from ccfcpp.deployment.server.transport import Deployed
from tests.support.classification import labelled_clients, small_algorithm, small_config
from tests.support.deployment import deployed, spec_of
from tests.support.federation import assert_same_bits

CLASSES = [str(number) for number in range(10)]


def over_the_wire(message: Message) -> Message:
    """What arrives of a message."""
    objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
    copy = inflate_object_from_contents(message.object_id, objects)
    assert isinstance(copy, Message)
    copy.metadata.__dict__["_message_id"] = message.object_id
    return copy


class Nodes:
    """A grid of Flower's whose nodes are sockets of workers here."""

    def __init__(self, sockets: dict[str, Path]) -> None:
        self.sockets = sockets
        self.replies: dict[str, Message] = {}
        self.started = ""
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(name=n, node_id=i, last_activated_at=self.started)
            for i, n in enumerate(self.sockets, 10)
        ]

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        (message,) = messages
        name = list(self.sockets)[message.metadata.dst_node_id - 10]
        node = Context(1, 1, {"worker": str(self.sockets[name])}, RecordDict(), {})
        arrived = over_the_wire(message)
        self.replies[arrived.metadata.message_id] = over_the_wire(exchange(arrived, node))
        return [arrived.metadata.message_id]

    def pull_messages(self, tickets: list[str]) -> list[Message]:
        return [self.replies.pop(t) for t in tickets if t in self.replies]


@contextmanager
def linked(nodes: Any, place: Path) -> Iterator[FlowerLink]:
    with listen(place / "server" / "socket") as listener:
        link = FlowerLink(listener)

        def serve() -> None:
            with Client(str(place / "server" / "socket"), "AF_UNIX") as server:
                relay(nodes, server)

        app = threading.Thread(target=serve, daemon=True)
        app.start()
        yield link
        link.close()
        app.join(10)
        assert not app.is_alive()


def test_a_run_through_flowers_messages_has_the_same_bits(tmp_path: Path) -> None:
    clients = labelled_clients(20, 15, 12)
    config = small_config("method=scaffold", "training.rounds=2", "compute.cohort=1")
    spec = spec_of(config, clients, classes=CLASSES)
    plain, grid = deployed(spec, small_algorithm(config, 3), clients, tmp_path / "a")
    state = plain.algorithm.initial_state(Randomness(0))
    expected = list(plain.run(state))
    there, grid = deployed(spec, small_algorithm(config, 3), clients, tmp_path / "b")
    sockets = {}
    for number, (name, worker) in enumerate(grid.workers.items()):
        sockets[name] = tmp_path / str(number) / "socket"
        arguments = listen(sockets[name]), worker.answer
        threading.Thread(target=answer_forever, args=arguments, daemon=True).start()
    with linked(Nodes(sockets), tmp_path) as link:
        assert isinstance(there.transport, Deployed)
        there.transport.link = link
        assert_same_bits(list(there.run(state)), expected)


def test_where_there_is_no_worker_an_empty_parcel_comes_and_no_error(tmp_path: Path) -> None:
    nodes = Nodes({"a": tmp_path / "nowhere"})
    with linked(nodes, tmp_path) as link:
        ticket = link.push(link.online()["a"], Packet(b"{}", b"abc"), 60.0)
        assert ticket is not None
        assert link.pull(ticket) == Packet(b"", b"")
        assert link.pull(ticket) is None


def test_the_text_of_an_error_goes_no_further(tmp_path: Path) -> None:
    nodes = Nodes({"a": tmp_path / "nowhere"})
    with linked(nodes, tmp_path) as link:
        ticket = link.push(10, Packet(b"{}"), 60.0)
        assert ticket is not None
        asked = nodes.replies[ticket]
        asked.__dict__["_error"] = None
        nodes.replies[ticket] = Message(Error(code=2, reason="/home/x"), reply_to=asked)
        assert link.pull(ticket) == Undelivered("its node has failed (Flower's error 2)")


def test_a_node_that_is_started_again_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower never tells: the message was delivered, and the node is online."""
    monkeypatch.setattr(server_app, "_LOOK", 0.0)
    nodes = Nodes({"a": tmp_path / "nowhere"})
    with linked(nodes, tmp_path) as link:
        tickets = [link.push(10, Packet(b"{}"), 60.0) for _ in range(2)]
        answered, asked = [ticket for ticket in tickets if ticket is not None]
        del nodes.replies[asked]
        assert link.pull(asked) is None
        nodes.started = "later"
        assert link.pull(answered) == Packet(b"", b"")
        assert link.pull(asked) == Undelivered("its node has been started again")


def test_other_records_are_no_parcel() -> None:
    assert packet_of(SimpleNamespace(content=record_of(Packet(b"a", b"b")))) == (b"a", b"b")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="other records"):
        packet_of(SimpleNamespace(content=RecordDict({})))  # type: ignore[arg-type]


def test_a_server_app_that_ends_is_said(tmp_path: Path) -> None:
    with listen(tmp_path / "server" / "socket") as listener:
        link = FlowerLink(listener)
        Client(str(tmp_path / "server" / "socket"), "AF_UNIX").close()
        with pytest.raises(FederationError, match="--resume"):
            link.online()


@pytest.mark.parametrize("module", ["client.app", "server.app"])
def test_what_flower_starts_imports_no_torch(module: str) -> None:
    program = f"import sys, ccfcpp.deployment.{module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip().endswith("False"), done.stderr


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

        wait_for_clients(SimpleNamespace(online=online), enrolment, least, pause=0.0)
        assert len(seen) == looks
