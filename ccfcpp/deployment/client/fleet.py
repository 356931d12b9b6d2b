"""A client that speaks Flower's protocol, but executes no code from the server.

Flower's own client, the SuperNode, downloads a bundle of code from its server, the SuperLink, and
executes it. So the owner of the server could run any code at every client. This client makes the
same calls as a SuperNode (activate, heartbeat, pull, push, deactivate), with Flower's own messages
and signatures, and passes each packet to a ``Worker`` in this process. It never downloads code.
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
from ccfcpp.deployment.client.connection import CallSigner, Connection
from ccfcpp.deployment.client.proxy import ENDED, Reason, explain, find_proxy
from ccfcpp.deployment.keys.certificates import PrivateKey
from ccfcpp.deployment.link import flower_internals as flower
from ccfcpp.deployment.link.flower import decode_packet, payload_record, to_records
from ccfcpp.deployment.link.packet import MOST_BYTES, MOST_PARTS, Packet
from ccfcpp.deployment.link.server_status import ServerStatus

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
_HEARTBEAT = 5.0
"""Seconds between heartbeats."""
_HEARTBEAT_INTERVAL = 10.0
"""Interval stated to the server, in seconds. After twice that time the client counts as offline."""
_PAUSE, _MOST_PAUSE = 0.1, 5.0
"""First and longest pause between attempts, in seconds; it doubles each time."""
_PATIENCE = 20.0
"""Seconds for which calls that may safely be repeated are retried."""
_AVAILABLE = 60.0
"""Seconds to wait until all parts of a message are at the server."""


Answer = Callable[[Packet], Packet]
"""Returns the response packet to a request packet."""


class StatusDisplay(Protocol):
    """Interface of a display that shows the client's status to its owner."""

    def print_line(self, text: str) -> None:
        """Print a line that later status texts do not replace."""

    def show_status(self, text: str) -> None:
        """Show the client's status, such as "connecting", in place of the last one."""

    def show_progress(self, status: ServerStatus) -> None:
        """Show the server's progress, such as its round, in place of the last status."""


class FleetClient:
    """A client that connects to a federation's server and lets its worker answer each request.

    Args:
        server: Host and port of the server.
        authority: Certificate file of the authority (CA) that has signed the server's certificate.
        key: The client's private key.
        answer: Returns the response to a request; an error ends the connection, which is made anew.
        display: Shows the client's status to its owner.

    Raises:
        UsageError: The environment names a proxy that cannot be used.
    """

    def __init__(
        self, server: str, authority: Path, key: PrivateKey, answer: Answer, display: StatusDisplay
    ) -> None:
        self.server = server
        self.answer = answer
        self.display = display
        self._authority = authority
        self._signing = CallSigner(key)
        self._proxy = find_proxy(server)
        self._node: flower.Node | None = None
        self._stopped = threading.Event()

    def run(self) -> None:
        """Connect and answer requests until ``stop`` is called; reconnect after errors.

        Raises:
            UsageError: The first connection fails for a reason that retries cannot change.
        """
        known, lost, pause = False, "", _PAUSE
        while not self._stopped.is_set():
            try:
                self._resolve(show=not lost)
                with self._connected() as calls:
                    self.display.print_line(f"{'re' * known}connected to {self.server}")
                    known, lost, pause = True, "", _PAUSE
                    self._take_part(calls)
            except Exception as error:  # Untrusted bytes can make Flower's parsers fail in any way.
                cause = explain(error, self._proxy)
                if cause.final and not known:
                    raise UsageError(f"{self.server}: {cause.text}") from error
                if lost != cause.text and lost != ENDED.text:
                    self._report_loss(cause, first=known and not lost)
                    lost = cause.text
                self._stopped.wait(pause)
                pause = min(2 * pause, _MOST_PAUSE)

    def _resolve(self, show: bool) -> None:
        """Resolve the server's host name, which may be slow; if ``show``, tell the owner."""
        host, _, port = self.server.rpartition(":")
        if show:
            self.display.show_status(f"resolving {host}")
        if self._proxy is None:  # a proxy resolves the name itself
            socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        if show:
            self.display.show_status(f"connecting to {self.server}")

    def _report_loss(self, cause: Reason, first: bool) -> None:
        """Print why there is no connection; ``first``: whether an open one was lost just now."""
        if cause == ENDED:
            self.display.print_line(f"{cause.text}; this client waits for its next one")
        else:
            self.display.print_line(f"{'connection lost: ' * first}{cause.text}; it is tried again")

    def stop(self) -> None:
        """Make ``run`` return after the current call."""
        self._stopped.set()

    @contextmanager
    def _connected(self) -> Iterator["_Calls"]:
        """Register the client as online within the context; yield the calls that it can make."""
        proxy = self._proxy and self._proxy.url
        with Connection(
            self.server, self._authority, self._signing, proxy, self._show_progress
        ) as client:
            # After a lost connection the server may still count this client as online.
            self._leave(client)
            node = client.ActivateNode(
                flower.ActivateNodeRequest(
                    public_key=self._signing.public_key, heartbeat_interval=_HEARTBEAT_INTERVAL
                )
            )
            self._node, gone = flower.Node(node_id=node.node_id), threading.Event()
            arguments = client, self._node, gone
            beating = threading.Thread(
                target=_send_heartbeats, args=arguments, name="beat", daemon=True
            )
            beating.start()
            try:
                yield _Calls(client, self._node, self._stopped)
            finally:
                gone.set()
                beating.join(_HEARTBEAT)
                self._leave(client)

    def _show_progress(self, header: str) -> None:
        """Show the server's progress, given the response header with it; ignore an invalid one."""
        status = ServerStatus.read(header)
        if status is not None and self._node is not None:
            self.display.show_progress(status)

    def _leave(self, client: Connection) -> None:
        if self._node is not None:
            with suppress(Exception):  # Untrusted bytes can make parsers fail in any way.
                client.DeactivateNode(flower.DeactivateNodeRequest(node_id=self._node.node_id))
                self._node = None

    def _take_part(self, calls: "_Calls") -> None:
        while not self._stopped.is_set():
            message = calls.next_message()
            if message is not None:
                self._reply(calls, *message)

    def _reply(self, calls: "_Calls", message: Message, tree: flower.ObjectTree) -> None:
        """Fetch a message's packet, let the worker answer it, and send the response."""
        began = time.monotonic()
        try:
            packet = calls.packet_in(message, tree)
        except _WithdrawnError:
            return
        # An invalid message becomes an empty packet, which the worker refuses and logs.
        answer = self.answer(packet or Packet(b""))
        record = to_records(answer.header, payload_record(answer.payload))
        reply = Message(record, reply_to=message)
        # This machine's clock may be wrong: the reply gets the times of the request.
        reply.metadata.created_at = message.metadata.created_at
        reply.metadata.ttl = message.metadata.ttl
        reply.metadata.__dict__["_message_id"] = reply.object_id
        calls.send(reply, time.monotonic() - began)


class _WithdrawnError(Exception):
    """The server has withdrawn a message, since this client has reconnected after it was sent."""


class _Calls:
    """The calls of Flower's fleet API by which an online client gets requests and sends replies."""

    def __init__(self, client: Connection, node: flower.Node, over: threading.Event) -> None:
        self._client = client
        self._node = node
        self._stopped = over

    def next_message(self) -> tuple[Message, flower.ObjectTree] | None:
        """Return the next message, without content, and its parts' IDs; None if there is none now.

        The call is not retried, since the server delivers a message once. If the response is lost,
        the error makes this client reconnect, by which the server notices.
        """
        response = self._client.PullMessages(flower.PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        message = flower.message_from_proto(response.messages_list[0])
        return message, response.message_object_trees[0]

    def packet_in(self, message: Message, tree: flower.ObjectTree) -> Packet | None:
        """Fetch a message's parts and return the packet in it; None if it is invalid or too large.

        Raises:
            _WithdrawnError: The server no longer has the message, and expects no answer.
        """
        run = message.metadata.run_id
        contents: dict[str, bytes] = {}
        parts = list(flower.iterate_object_tree(tree))
        if len(parts) > MOST_PARTS:
            return None
        until = time.monotonic() + _AVAILABLE
        for part in parts:
            if part.object_id not in contents:
                contents[part.object_id] = self._fetch_part(run, part.object_id, until)
            if sum(map(len, contents.values())) > MOST_BYTES:
                return None
        self._retry(
            self._client.ConfirmMessageReceived,
            flower.ConfirmMessageReceivedRequest(
                node=self._node, run_id=run, message_object_id=message.metadata.message_id
            ),
        )
        return decode_packet(tree.object_id, contents)

    def _fetch_part(self, run: int, name: str, until: float) -> bytes:
        request = flower.PullObjectRequest(node=self._node, run_id=run, object_id=name)
        while True:
            response = self._retry(self._client.PullObject, request)
            if response.object_found and response.object_available:
                return bytes(response.object_content)
            if not response.object_found:
                raise _WithdrawnError
            if time.monotonic() > until:
                raise ValueError("a part of a message did not reach the server")
            self._stopped.wait(_PAUSE)

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply, and state how many seconds it took to compute."""
        tree = flower.get_object_tree(reply)
        parts = flower.get_all_nested_objects(reply)
        wanted = self._retry(
            self._client.PushMessages,
            flower.PushMessagesRequest(
                node=self._node,
                messages_list=[flower.message_to_proto(flower.remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            ),
        )
        for name in wanted.objects_to_push:
            self._retry(
                self._client.PushObject,
                flower.PushObjectRequest(
                    node=self._node,
                    run_id=reply.metadata.run_id,
                    session_id=wanted.session_id,
                    object_id=name,
                    object_content=parts[name].deflate(),
                ),
            )

    def _retry(self, call: Callable[[RequestT], ResponseT], request: RequestT) -> ResponseT:
        """Make a call and return the response; retry for some time if the server is not reached."""
        until, pause = time.monotonic() + _PATIENCE, _PAUSE
        while True:
            try:
                return call(request)
            except httpx.HTTPError as error:
                lost = isinstance(error, httpx.TransportError) or _is_away(error)
                if not lost or time.monotonic() > until or self._stopped.wait(pause):
                    raise
                pause = min(2 * pause, 1.0)


def _is_away(error: httpx.HTTPError) -> bool:
    """Return whether the gate (the server's proxy) has answered that it cannot reach the server."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code in (502, 504)


def _send_heartbeats(client: Connection, node: flower.Node, gone: threading.Event) -> None:
    request = flower.SendNodeHeartbeatRequest(node=node, heartbeat_interval=_HEARTBEAT_INTERVAL)
    while not gone.wait(_HEARTBEAT):
        with suppress(Exception):  # The next call will notice.
            client.SendNodeHeartbeat(request)
