"""The clients of a server and its messages to them, held in Flower's server state.

Flower's own server, the SuperLink, offers this state through three APIs. Two of them, which start
runs and serve apps, have no password: any user of the machine could use them. So here the process
of the run holds the state itself, and offers only the API that clients need (``fleet_app``).
"""

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from itertools import islice, product

from flwr.app import ArrayRecord, Message

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.link.flower import MESSAGE_TYPE, decode_packet, payload_record, to_records
from ccfcpp.deployment.link.packet import MOST_BYTES, MOST_PARTS, Packet, Undelivered
from ccfcpp.deployment.server import flower_internals as flower

_EXPIRED = Undelivered("it was asked too long ago")


@dataclass(frozen=True)
class _Sent:
    """A message sent to a client: the client's node ID and time of connection; a time limit."""

    node: int
    activated: str
    until: float


class _BoundedStore(flower.InMemoryObjectStore):
    """Flower's store of message parts (objects), with a limit per message and complete deletion."""

    def __init__(self) -> None:
        super().__init__()
        self._registered_with: dict[str, list[str]] = {}

    def preregister(self, run_id: int, object_tree: flower.ObjectTree) -> list[str]:
        """Register the objects (parts) of a message before they arrive; return the IDs of new ones.

        Raises:
            ValueError: There are too many objects, or the message had others before.
        """
        parts = list(islice(flower.iterate_object_tree(object_tree), MOST_PARTS + 1))
        if len(parts) > MOST_PARTS:
            raise ValueError(f"a message has more than {MOST_PARTS} objects")
        root = object_tree.object_id
        if root in self.store and any(part.object_id not in self.store for part in parts):
            raise ValueError("a message has other objects than before")
        registered: list[str] = super().preregister(run_id, object_tree)
        self._registered_with.setdefault(root, registered)
        return registered

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store an object's content; the list of parts in it replaces the registered list."""
        with self.lock_store:
            super().put(object_id, object_content)
            named = flower.get_object_children_ids_from_object_content(object_content)
            entry, parts = self.store[object_id], [name for name in named if name in self.store]
            for name, count in (*product(entry.child_object_ids, [-1]), *product(parts, [1])):
                self.store[name].ref_count += count
            entry.child_object_ids = parts

    def delete(self, object_id: str) -> None:
        """Delete an object, and those of its parts that no other object needs."""
        super().delete(object_id)
        if object_id not in self.store:
            # Flower would keep registered objects that are not parts of any other.
            for name in self._registered_with.pop(object_id, ()):
                self.delete(name)


class Fleet:
    """Server side of the ``Link`` to the fleet (all clients on a roster), over Flower's protocol.

    Args:
        roster: Public keys in PEM format, by the client's name.
        admitted: Returns the names of the clients that are still on the roster.

    Attributes:
        factory: Gives Flower's request handlers access to its state.
        announce: Called with a client's name when there is a new message for it.
        status: Returns the server's progress, which is sent to clients; empty for none.
    """

    def __init__(
        self, roster: Mapping[str, bytes], admitted: Callable[[], Container[str]] | None = None
    ) -> None:
        memory = flower.FLWR_IN_MEMORY_DB_NAME
        objects = flower.ObjectStoreFactory(memory)
        objects.store_instance = _BoundedStore()
        self.factory = flower.LinkStateFactory(memory, flower.NoOpFederationManager(), objects)
        self.announce: Callable[[str], None] = lambda name: None
        self.status: Callable[[], str] = str
        self._names = {b64encode(key): name for name, key in roster.items()}
        self._admitted = admitted or (lambda: roster)
        self._last_calls: dict[str, float] = {}
        self._state: flower.LinkState = self.factory.state()
        self._run, self._task = _start_run(self._state)
        owner = flower.NOOP_FLWR_AID, flower.NOOP_ACCOUNT_NAME
        for name, key in roster.items():
            self._state.create_node(*owner, key, 0.0, name=name)
        self._sent: dict[str, _Sent] = {}
        self._replies: dict[str, str] = {}
        self._delivered: set[str] = set()
        self._payload = b"", payload_record(b"")

    def online(self) -> dict[str, int]:
        """Return the node ID of each client that is online, by the client's name."""
        nodes = self._state.get_node_info(node_ids=list(self._state.get_nodes(self._run)))
        return {node.name: node.node_id for node in nodes}

    def name_of(self, key: bytes) -> str | None:
        """Return the name of the client with a public key (PEM in base64); None if unknown."""
        return self._names.get(key)

    def record_call(self, key: bytes) -> None:
        """Record that the client with a public key (PEM in base64) has made a valid call now."""
        if name := self.name_of(key):
            self._last_calls[name] = time.monotonic()

    def seconds_since_call(self) -> dict[str, float]:
        """Return the seconds since each client's last call, by name of those that have called."""
        return {name: time.monotonic() - when for name, when in list(self._last_calls.items())}

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Send a packet to a client, as ``Link.push``; store a payload for several clients once."""
        message = self._message(node, packet, seconds)
        ticket: str = message.metadata.message_id
        session = self._state.start_session(self._run)
        stored, missing = self._state.store_message_and_object_tree(
            flower.remove_content_from_message(message), flower.get_object_tree(message), session
        )
        if not stored:
            return None
        objects = flower.get_all_nested_objects(message)
        for name in missing:
            self._state.store_object(self._run, session, name, objects[name].deflate())
        receiver, until = self._node(node), time.monotonic() + seconds
        self._sent[ticket] = _Sent(node, str(receiver.last_activated_at), until)
        self.announce(receiver.name)
        return ticket

    def expects_reply(self, node: int, ticket: str, reply: str) -> bool:
        """Return whether a ticket's message went to ``node`` and has no reply but ``reply``."""
        sent = self._sent.get(ticket)
        is_own = sent is not None and sent.node == node
        return is_own and self._replies.setdefault(ticket, reply) == reply

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """Return the response to the packet sent with a ticket, as in ``Link.pull``."""
        sent = self._sent.get(ticket)
        if sent is None:
            return _EXPIRED
        reply = self._find_reply(ticket) or self._why_undelivered(sent)
        if reply is not None:
            self._forget(ticket)
        return reply

    def keep_alive(self) -> None:
        """Keep Flower's run alive, delete expired messages, and remove clients no longer admitted.

        Call this at least every half minute. If Flower has ended its run, for instance after a
        change of the clock, a new one is started, and earlier requests are lost.
        """
        if not self._state.acknowledge_task_heartbeat(self._task):
            self._run, self._task = _start_run(self._state)
        for ticket, sent in list(self._sent.items()):
            if time.monotonic() > sent.until:
                self._forget(ticket)
        admitted = self._admitted()
        for key, name in list(self._names.items()):
            if name not in admitted:
                # All its further calls are refused.
                del self._names[key]
                node = self._state.get_node_id_by_public_key(b64decode(key))
                if node is not None:
                    self._state.delete_node(flower.NOOP_FLWR_AID, node)

    def _message(self, node: int, packet: Packet, seconds: float) -> Message:
        metadata = flower.Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=flower.SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=flower.now().timestamp(),
            ttl=seconds,
            message_type=MESSAGE_TYPE,
        )
        message = flower.make_message(metadata, to_records(packet.header, self._payload_of(packet)))
        message.metadata.__dict__["_message_id"] = message.object_id
        return message

    def _payload_of(self, packet: Packet) -> ArrayRecord:
        known, record = self._payload
        if known is not packet.payload:
            record = payload_record(packet.payload)
            self._payload = packet.payload, record
        return record

    def _why_undelivered(self, sent: _Sent) -> Undelivered | None:
        """Return why a message can get no reply, as after a reconnection; None if it can."""
        node = self._node(sent.node)
        if str(node.last_activated_at) != sent.activated:
            return Undelivered("its node has been started again")
        is_online = node.status == flower.NodeStatus.ONLINE
        return None if is_online else Undelivered("its node is gone")

    def _node(self, number: int) -> flower.NodeInfo:
        (node,) = self._state.get_node_info(node_ids=[number])
        return node

    def _find_reply(self, ticket: str) -> Packet | Undelivered | None:
        """Return the reply to a ticket's message; None if not all of its parts have arrived."""
        if ticket not in self._delivered:
            try:
                replies = self._state.get_message_res({ticket}, self._run)
            except KeyError:
                return _EXPIRED
            if not replies:
                return None
            self._replies.setdefault(ticket, replies[0].metadata.message_id)
            if replies[0].has_error():
                # Without the reason, which may be the text of an exception with private data.
                return Undelivered(f"its node has failed (Flower's error {replies[0].error.code})")
            self._delivered.add(ticket)
        return self._read_reply(self._replies.get(ticket, ""))

    def _read_reply(self, name: str) -> Packet | Undelivered | None:
        """Return the packet in a reply, given its ID; an empty packet if the reply is not valid.

        It is None while parts are still to arrive, and ``Undelivered`` if one cannot arrive.
        """
        contents: dict[str, bytes] = {}
        waiting = [name]
        while waiting:
            part = waiting.pop()
            if part in contents:
                continue
            content = self._state.get_object(self._run, part)
            if content is None:
                return Undelivered("its answer did not arrive whole")
            if not content:
                return None
            contents[part] = content
            waiting += flower.get_object_children_ids_from_object_content(content)
            if len(contents) > MOST_PARTS or sum(map(len, contents.values())) > MOST_BYTES:
                return Packet(b"")
        # An empty packet will be refused as invalid.
        return decode_packet(name, contents) or Packet(b"")

    def _forget(self, ticket: str) -> None:
        self._sent.pop(ticket, None)
        self._delivered.discard(ticket)
        self._state.delete_messages({ticket})
        for name in (ticket, self._replies.pop(ticket, "")):
            self._state.object_store.delete(name)


def _start_run(state: flower.LinkState) -> tuple[int, int]:
    """Start a run of Flower, and return its number and that of its task."""
    owner, kind = flower.NOOP_FLWR_AID, flower.TaskType.SERVER_APP
    run = state.create_run(None, None, None, {}, flower.NOOP_FEDERATION_ID, None, owner, kind)
    (info,) = state.get_run_info(run_ids=[run])
    task = info.primary_task_id
    if task is None or state.claim_task(task) is None or not state.activate_task(task):
        raise FederationError("Flower does not start a run")
    return run, task
