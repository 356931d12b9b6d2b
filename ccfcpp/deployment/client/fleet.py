"""A client of Flower's fleet that runs no code but its own.

A SuperNode of Flower fetches a bundle of code from its SuperLink and executes it. So the owner of
the server could run any code at every client. This client makes the same calls as a SuperNode
(activate, heartbeat, pull, push, deactivate), with Flower's own messages and signatures, and passes
each packet to the resident worker in this process. It never asks for a bundle, so there is no
foreign code to execute.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol, TypeVar

import httpx
from flwr.app import Message

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.client.connection import Connection, Signing
from ccfcpp.deployment.client.proxy import ENDED, Reason, proxy_to, reason
from ccfcpp.deployment.keys.certificates import PrivateKey
from ccfcpp.deployment.link.flower import packet_from, payload_record, record_of
from ccfcpp.deployment.link.flower_internals import (
    ActivateNodeRequest,
    ConfirmMessageReceivedRequest,
    DeactivateNodeRequest,
    Node,
    ObjectTree,
    PullMessagesRequest,
    PullObjectRequest,
    PushMessagesRequest,
    PushObjectRequest,
    SendNodeHeartbeatRequest,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    message_from_proto,
    message_to_proto,
    remove_content_from_message,
)
from ccfcpp.deployment.link.packet import MOST_BYTES, MOST_PARTS, Packet
from ccfcpp.deployment.link.server_status import ServerStatus

Asked = TypeVar("Asked")
Given = TypeVar("Given")
_BEAT = 5.0
"""Seconds between heartbeats."""
_BEARS = 10.0
"""Interval that the server is told. It counts a client as offline after twice that time."""
_PAUSE, _MOST_PAUSE = 0.1, 5.0
"""Seconds before something is asked for again; at the most, if it fails again and again."""
_PATIENCE = 20.0
"""Seconds for which a call is repeated that does no harm when it is made twice."""
_AVAILABLE = 60.0
"""Seconds that the parts of a message have to arrive at the server."""


Answer = Callable[[Packet], Packet]


class Tells(Protocol):
    """Interface of the display of a client's status for its owner."""

    def print_line(self, text: str) -> None:
        """Print a permanent line."""

    def show_status(self, text: str) -> None:
        """Show the client's status, until it changes."""

    def show_progress(self, status: ServerStatus) -> None:
        """Show the server's progress."""


class FleetClient:
    """A client that connects to a federation's server and lets its worker answer each request.

    Args:
        server: Host and port of the gate.
        authority: File of the certificate of the server's authority.
        key: The client's private key.
        answer: Does the work that a packet asks for; it raises no error.
        tells: Shows the status to the owner.

    Raises:
        UsageError: The connection leads through a proxy that cannot be used.
    """

    def __init__(
        self, server: str, authority: Path, key: PrivateKey, answer: Answer, tells: Tells
    ) -> None:
        self.server = server
        self.answer = answer
        self.tells = tells
        self._authority = authority
        self._signing = Signing(key)
        self._proxy = proxy_to(server)
        self._node: Node | None = None
        self._over = threading.Event()

    def run(self) -> None:
        """Take part until ``stop``, and reconnect after a lost connection.

        Raises:
            UsageError: Before the first connection: it is refused for a lasting reason.
        """
        known, lost, pause = False, "", _PAUSE
        while not self._over.is_set():
            try:
                self._look_up(told=not lost)
                with self._place() as calls:
                    self.tells.print_line(f"{'re' * known}connected to {self.server}")
                    known, lost, pause = True, "", _PAUSE
                    self._take_part(calls)
            except Exception as error:  # Bytes of others can make Flower's readers fail in any way.
                found = reason(error, self._proxy)
                if found.final and not known:
                    raise UsageError(f"{self.server}: {found.text}") from error
                if lost != found.text and lost != ENDED.text:
                    self._tell_lost(found, first=known and not lost)
                    lost = found.text
                self._over.wait(pause)
                pause = min(2 * pause, _MOST_PAUSE)

    def _look_up(self, told: bool) -> None:
        """Look up the server's name, which takes long if the network is misconfigured."""
        host, _, port = self.server.rpartition(":")
        if told:
            self.tells.show_status(f"resolving {host}")
        if self._proxy is None:  # else that does it
            socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        if told:
            self.tells.show_status(f"connecting to {self.server}")

    def _tell_lost(self, found: Reason, first: bool) -> None:
        """Explain once why there is no connection, unless the run has ended."""
        if found == ENDED:
            self.tells.print_line(f"{found.text}; this client waits for its next one")
        else:
            self.tells.print_line(f"{'connection lost: ' * first}{found.text}; it is tried again")

    def stop(self) -> None:
        """Leave the federation after the current call."""
        self._over.set()

    @contextmanager
    def _place(self) -> Iterator["_Calls"]:
        """Register the client as online within the context, and yield its calls to the server."""
        proxy = self._proxy and self._proxy.url
        with Connection(self.server, self._authority, self._signing, proxy, self._heard) as client:
            # After a connection was lost the server still counts this client as online.
            self._leave(client)
            found = client.ActivateNode(
                ActivateNodeRequest(public_key=self._signing.public_key, heartbeat_interval=_BEARS)
            )
            self._node, gone = Node(node_id=found.node_id), threading.Event()
            arguments = client, self._node, gone
            beating = threading.Thread(target=_beat, args=arguments, name="beat", daemon=True)
            beating.start()
            try:
                yield _Calls(client, self._node, self._over)
            finally:
                gone.set()
                beating.join(_BEAT)
                self._leave(client)

    def _heard(self, header: str) -> None:
        """Record the server's progress from a response header."""
        status = ServerStatus.read(header)
        if status is not None and self._node is not None:
            self.tells.show_progress(status)

    def _leave(self, client: Connection) -> None:
        if self._node is not None:
            with suppress(Exception):  # Bytes of others can make readers fail in any way.
                client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
                self._node = None

    def _take_part(self, calls: "_Calls") -> None:
        while not self._over.is_set():
            found = calls.next_message()
            if found is not None:
                self._reply(calls, *found)

    def _reply(self, calls: "_Calls", message: Message, tree: ObjectTree) -> None:
        """Answer a message with the worker's packet, or with an empty one if it is not ours."""
        began = time.monotonic()
        try:
            packet = calls.packet_in(message, tree)
        except _WithdrawnError:
            return
        # What is of another form is a request that cannot be read, which is refused and logged.
        answer = self.answer(packet or Packet(b""))
        record = record_of(answer.header, payload_record(answer.payload))
        # What is fetched has no identity of its own: the envelope that was pulled has.
        reply = Message(record, reply_to=message)
        # By the clock of this machine, which may be wrong, its time may be over.
        reply.metadata.created_at = message.metadata.created_at
        reply.metadata.ttl = message.metadata.ttl
        reply.metadata.__dict__["_message_id"] = reply.object_id
        calls.send(reply, time.monotonic() - began)


class _WithdrawnError(Exception):
    """The server withdrew a message that was meant for this client before its restart."""


class _Calls:
    """Calls to the server's fleet API by a client that is online."""

    def __init__(self, client: Connection, node: Node, over: threading.Event) -> None:
        self._client = client
        self._node = node
        self._over = over

    def next_message(self) -> tuple[Message, ObjectTree] | None:
        """Return the envelope of a message and the names of its parts; None if there is none.

        It is never repeated: a message is delivered once. If it is lost, the error ends
        this client's session, and the server learns of it when the client comes back.
        """
        found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        return message_from_proto(found.messages_list[0]), found.message_object_trees[0]

    def packet_in(self, message: Message, tree: ObjectTree) -> Packet | None:
        """Fetch a message and return the packet in it; None if it holds anything else.

        Raises:
            _WithdrawnError: The message is no longer at the server, so that no answer is expected.
        """
        run = message.metadata.run_id
        contents: dict[str, bytes] = {}
        parts = list(iterate_object_tree(tree))
        if len(parts) > MOST_PARTS:
            return None
        until = time.monotonic() + _AVAILABLE
        for part in parts:
            if part.object_id not in contents:
                contents[part.object_id] = self._part(run, part.object_id, until)
            if sum(map(len, contents.values())) > MOST_BYTES:
                return None
        self._again(
            self._client.ConfirmMessageReceived,
            ConfirmMessageReceivedRequest(
                node=self._node, run_id=run, message_object_id=message.metadata.message_id
            ),
        )
        return packet_from(tree.object_id, contents)

    def _part(self, run: int, name: str, until: float) -> bytes:
        request = PullObjectRequest(node=self._node, run_id=run, object_id=name)
        while True:
            found = self._again(self._client.PullObject, request)
            if found.object_found and found.object_available:
                return bytes(found.object_content)
            if not found.object_found:
                raise _WithdrawnError
            if time.monotonic() > until:
                raise ValueError("a part of a message did not reach the server")
            self._over.wait(_PAUSE)

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply, with the seconds that its work took."""
        tree = get_object_tree(reply)
        parts = get_all_nested_objects(reply)
        wanted = self._again(
            self._client.PushMessages,
            PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            ),
        )
        for name in wanted.objects_to_push:
            self._again(
                self._client.PushObject,
                PushObjectRequest(
                    node=self._node,
                    run_id=reply.metadata.run_id,
                    session_id=wanted.session_id,
                    object_id=name,
                    object_content=parts[name].deflate(),
                ),
            )

    def _again(self, call: Callable[[Asked], Given], request: Asked) -> Given:
        """Make a call, repeat it while the server cannot be reached, and return the response."""
        until, pause = time.monotonic() + _PATIENCE, _PAUSE
        while True:
            try:
                return call(request)
            except httpx.HTTPError as error:
                lost = isinstance(error, httpx.TransportError) or _is_away(error)
                if not lost or time.monotonic() > until or self._over.wait(pause):
                    raise
                pause = min(2 * pause, 1.0)


def _is_away(error: httpx.HTTPError) -> bool:
    """Return whether the gate has answered that it cannot reach the server."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (502, 504)


def _beat(client: Connection, node: Node, gone: threading.Event) -> None:
    request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=_BEARS)
    while not gone.wait(_BEAT):
        with suppress(Exception):  # The next call will notice.
            client.SendNodeHeartbeat(request)
