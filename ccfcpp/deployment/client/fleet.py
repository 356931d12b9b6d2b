"""A client of Flower's fleet that runs no code but its own.

A SuperNode of Flower fetches a bundle of code from its SuperLink and executes it. Whoever runs the
server could so run anything at every client. This client makes the same calls as a SuperNode
(activate, heartbeat, pull, push, deactivate), with Flower's own messages and signatures, and hands
each packet to the resident worker in this process. There is nothing that it could execute: it asks
for no bundle.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from ccfcpp.deployment.link.flower import packet_of, record_of
from ccfcpp.deployment.link.packet import Packet

_INTERVAL = 15.0
"""Seconds between heartbeats; the server is told three times as many."""
_TOLERATED = 2 * _INTERVAL
_PAUSE, _MOST_PAUSE = 0.2, 5.0
"""Seconds before something is asked for again; at the most, where it fails again and again."""
_AVAILABLE = 60.0
"""Seconds that the parts of a message have to arrive at the server."""
_REASONS = {
    "2004": "the server does not know the key, or the key is in use: give its .pub file to the "
    "server's owner for the roster (after a crash a key is in use for a minute)",
    "not valid for": "the server's certificate is for another name: give --server as the "
    "certificate has it",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of this authority: ask the "
    "server's owner for its ca.crt (--authority)",
}
"""What stands in an error, and the reason for it."""


class FleetClient:
    """A key's place in a federation, and what answers for it.

    Args:
        server: Host and port of the gate.
        authority: File of the certificate of the server's authority.
        key: File of the client's private key.
        answer: Does what a packet asks for.
        say: Tells the owner something.
    """

    def __init__(
        self,
        server: str,
        authority: Path,
        key: Path,
        answer: Callable[[Packet], Packet],
        say: Callable[[str], None],
    ) -> None:
        self.server = server
        self.answer = answer
        self.say = say
        self._authority = authority
        self._key = load_ssh_private_key(key.read_bytes(), None)
        self._over = threading.Event()

    def run(self) -> None:
        """Take part until ``stop``; a connection that is lost is made anew."""
        said, pause = "", _PAUSE
        while not self._over.is_set():
            try:
                with self._place() as (client, node):
                    said, pause = "", _PAUSE
                    self._take_part(client, node)
            except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:
                line = f"{reason(error)}; it is tried again"
                if line != said:
                    self.say(line)
                said = line
                self._over.wait(pause)
                pause = min(2 * pause, _MOST_PAUSE)

    def stop(self) -> None:
        """Leave after the call that is under way."""
        self._over.set()

    @contextmanager
    def _place(self) -> Iterator[tuple[FleetHttpClient, Node]]:
        """Be online within the context."""
        assert isinstance(self._key, ec.EllipticCurvePrivateKey)
        public = self._key.public_key()
        signing = NodeAuthHttpInterceptor(self._key, public)
        with FleetHttpClient.from_server_address(
            self.server, False, str(self._authority), interceptors=[signing]
        ) as client:
            found = client.ActivateNode(
                ActivateNodeRequest(
                    public_key=public_key_to_bytes(public), heartbeat_interval=_TOLERATED
                )
            )
            node, gone = Node(node_id=found.node_id), threading.Event()
            beating = threading.Thread(
                target=self._beat, args=(client, node, gone), name="heartbeat", daemon=True
            )
            beating.start()
            try:
                yield client, node
            finally:
                gone.set()
                beating.join()
                with suppress(httpx.HTTPError, RuntimeError):
                    client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))

    def _beat(self, client: FleetHttpClient, node: Node, gone: threading.Event) -> None:
        request = SendNodeHeartbeatRequest(node=node, heartbeat_interval=_TOLERATED)
        while not gone.wait(_INTERVAL):
            with suppress(httpx.HTTPError, RuntimeError):  # The next call will notice.
                client.SendNodeHeartbeat(request)

    def _take_part(self, client: FleetHttpClient, node: Node) -> None:
        while not self._over.is_set():
            found = client.PullMessages(PullMessagesRequest(node=node))
            if not found.messages_list:
                self._over.wait(_PAUSE)
                continue
            message = message_from_proto(found.messages_list[0])
            self._reply(client, node, message, found.message_object_trees[0])

    def _reply(
        self, client: FleetHttpClient, node: Node, message: Message, tree: ObjectTree
    ) -> None:
        """Answer a message with the worker's packet; with an empty one if it is none of ours."""
        run, began = message.metadata.run_id, time.monotonic()
        whole = self._fetched(client, node, run, tree)
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=node, run_id=run, message_object_id=message.metadata.message_id
            )
        )
        try:
            answer = self.answer(packet_of(whole))
        except ValueError as error:
            self.say(f"a message was refused: {error}")
            answer = Packet(b"")
        # What is fetched has no identity of its own: the envelope that was pulled has.
        reply = Message(record_of(answer), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self._send(client, node, reply, time.monotonic() - began)

    def _fetched(self, client: FleetHttpClient, node: Node, run: int, tree: ObjectTree) -> Message:
        contents: dict[str, bytes] = {}
        until = time.monotonic() + _AVAILABLE
        for part in iterate_object_tree(tree):
            while part.object_id not in contents:
                request = PullObjectRequest(node=node, run_id=run, object_id=part.object_id)
                found = client.PullObject(request)
                if found.object_found and found.object_available:
                    contents[part.object_id] = found.object_content
                elif not found.object_found or time.monotonic() > until:
                    raise ValueError("a part of a message is not at the server")
                else:
                    self._over.wait(_PAUSE)
        message = inflate_object_from_contents(tree.object_id, contents)
        assert isinstance(message, Message)
        return message

    def _send(self, client: FleetHttpClient, node: Node, reply: Message, seconds: float) -> None:
        tree = get_object_tree(reply)
        contents = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        wanted = client.PushMessages(
            PushMessagesRequest(
                node=node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            )
        )
        for name in wanted.objects_to_push:
            client.PushObject(
                PushObjectRequest(
                    node=node,
                    run_id=reply.metadata.run_id,
                    session_id=wanted.session_id,
                    object_id=name,
                    object_content=contents[name],
                )
            )


def reason(error: Exception) -> str:
    """Why the server cannot be reached, for the owner of the client."""
    text = str(error)
    if isinstance(error, httpx.HTTPStatusError):
        text += error.response.text
    found = (why for sign, why in _REASONS.items() if sign in text)
    return next(found, f"the server cannot be reached ({type(error).__name__}: {text[:200]})")
