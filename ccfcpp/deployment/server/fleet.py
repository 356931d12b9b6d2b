"""Flower's state of a server: the clients' keys, and the messages to and from them.

A SuperLink of Flower is this state behind three APIs. Two of them, which start runs and serve apps,
have no password: any user of the machine could use them. So there is no SuperLink: the run holds
the state itself, and of the APIs only what clients need is served (``fleet_app``).
"""

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from itertools import islice, product

from flwr.app import ArrayRecord, Message

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.link.flower import MESSAGE_TYPE, packet_from, payload_record, record_of
from ccfcpp.deployment.link.flower_internals import (
    ObjectTree,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    now,
    remove_content_from_message,
)
from ccfcpp.deployment.link.packet import MOST_BYTES, MOST_PARTS, Packet, Undelivered
from ccfcpp.deployment.server.flower_internals import (
    FLWR_IN_MEMORY_DB_NAME,
    NOOP_ACCOUNT_NAME,
    NOOP_FEDERATION_ID,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    InMemoryObjectStore,
    LinkState,
    LinkStateFactory,
    Metadata,
    NodeInfo,
    NodeStatus,
    NoOpFederationManager,
    ObjectStoreFactory,
    TaskType,
    get_object_children_ids_from_object_content,
    make_message,
)

_GONE = Undelivered("its node is gone")
_AGAIN = Undelivered("its node has been started again")
_EXPIRED = Undelivered("it was asked too long ago")
_IN_PARTS = Undelivered("its answer did not arrive whole")


@dataclass(frozen=True)
class _Asked:
    """A sent message: its node, when that was activated, and its time limit."""

    node: int
    activated: str
    until: float


class _BoundedStore(InMemoryObjectStore):
    """Flower's store of objects, with few objects for a message and none left over."""

    def __init__(self) -> None:
        super().__init__()
        self._came_with: dict[str, list[str]] = {}

    def preregister(self, run_id: int, object_tree: ObjectTree) -> list[str]:
        """Announce the objects of a message before they arrive.

        Raises:
            ValueError: They are too many, or others than the message had before.
        """
        parts = list(islice(iterate_object_tree(object_tree), MOST_PARTS + 1))
        if len(parts) > MOST_PARTS:
            raise ValueError(f"a message has more than {MOST_PARTS} objects")
        root = object_tree.object_id
        if root in self.store and any(part.object_id not in self.store for part in parts):
            raise ValueError("a message has other objects than before")
        found: list[str] = super().preregister(run_id, object_tree)
        self._came_with.setdefault(root, found)
        return found

    def put(self, object_id: str, object_content: bytes) -> None:
        """Store an object's content, whose own list of parts replaces any announced one."""
        with self.lock_store:
            super().put(object_id, object_content)
            named = get_object_children_ids_from_object_content(object_content)
            entry, parts = self.store[object_id], [name for name in named if name in self.store]
            for name, count in (*product(entry.child_object_ids, [-1]), *product(parts, [1])):
                self.store[name].ref_count += count
            entry.child_object_ids = parts

    def delete(self, object_id: str) -> None:
        """Delete an object, and the parts that belong to no other one."""
        super().delete(object_id)
        if object_id not in self.store:
            # A tree can hang objects below one that has other parts, where Flower forgets them.
            for name in self._came_with.pop(object_id, ()):
                self.delete(name)


class Fleet:
    """The clients of a roster; the ``Link`` to them for a run in this process.

    Args:
        roster: Public keys by the client's name, as PEM.
        admitted: Returns the names of the clients that are still on the roster.

    Attributes:
        factory: Gives Flower's state to its handlers.
        announce: Called with the name of a client for which there is a message, in the thread that
            sends it.
        status: Returns the server's progress, which clients are sent; empty for none.
    """

    def __init__(
        self, roster: Mapping[str, bytes], admitted: Callable[[], Container[str]] | None = None
    ) -> None:
        memory = FLWR_IN_MEMORY_DB_NAME
        objects = ObjectStoreFactory(memory)
        objects.store_instance = _BoundedStore()
        self.factory = LinkStateFactory(memory, NoOpFederationManager(), objects)
        self.announce: Callable[[str], None] = lambda name: None
        self.status: Callable[[], str] = str
        self._names = {b64encode(key): name for name, key in roster.items()}
        self._admitted = admitted or (lambda: roster)
        self._heard: dict[str, float] = {}
        self._state: LinkState = self.factory.state()
        self._run, self._task = _running(self._state)
        for name, key in roster.items():
            self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0.0, name=name)
        self._asked: dict[str, _Asked] = {}
        self._replies: dict[str, str] = {}
        self._delivered: set[str] = set()
        self._payload = b"", payload_record(b"")

    def online(self) -> dict[str, int]:
        """Return the nodes that are online, by the name under which their key is registered."""
        nodes = self._state.get_node_info(node_ids=list(self._state.get_nodes(self._run)))
        return {node.name: node.node_id for node in nodes}

    def name_of(self, key: bytes) -> str | None:
        """Return the name of a key, given as in the calls' header; None if unknown."""
        return self._names.get(key)

    def hear(self, key: bytes) -> None:
        """Record a call of the client with a key, whose signature is valid."""
        if name := self.name_of(key):
            self._heard[name] = time.monotonic()

    def silent(self) -> dict[str, float]:
        """Return the seconds since the last call of each client that has ever called."""
        return {name: time.monotonic() - when for name, when in list(self._heard.items())}

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Send a packet to a node. A payload that goes to several nodes is stored once."""
        message = self._message(node, packet, seconds)
        ticket: str = message.metadata.message_id
        session = self._state.start_session(self._run)
        stored, missing = self._state.store_message_and_object_tree(
            remove_content_from_message(message), get_object_tree(message), session
        )
        if not stored:
            return None
        objects = get_all_nested_objects(message)
        for name in missing:
            self._state.store_object(self._run, session, name, objects[name].deflate())
        receiver, until = self._node(node), time.monotonic() + seconds
        self._asked[ticket] = _Asked(node, str(receiver.last_activated_at), until)
        self.announce(receiver.name)
        return ticket

    def awaits(self, node: int, ticket: str, reply: str) -> bool:
        """Return whether a reply, by its name, is the first to a message, and from its node."""
        asked = self._asked.get(ticket)
        own = asked is not None and asked.node == node
        return own and self._replies.setdefault(ticket, reply) == reply

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """Return the response to a packet; None if there is none yet."""
        asked = self._asked.get(ticket)
        if asked is None:
            return _EXPIRED
        found = self._reply_to(ticket) or self._why_none_comes(asked)
        if found is not None:
            self._forget(ticket)
        return found

    def beat(self) -> None:
        """Keep the run alive for Flower; call it at least every half minute.

        Flower ends a run without beats, for instance when the clock was set. Then a new run begins
        and earlier requests are lost.
        """
        if not self._state.acknowledge_task_heartbeat(self._task):
            self._run, self._task = _running(self._state)
        for ticket, asked in list(self._asked.items()):
            if time.monotonic() > asked.until:
                self._forget(ticket)
        admitted = self._admitted()
        for key, name in list(self._names.items()):
            if name not in admitted:
                self._dismiss(key)

    def _dismiss(self, key: bytes) -> None:
        """Refuse all further calls of a client that was taken off the roster."""
        del self._names[key]
        node = self._state.get_node_id_by_public_key(b64decode(key))
        if node is not None:
            self._state.delete_node(NOOP_FLWR_AID, node)

    def _message(self, node: int, packet: Packet, seconds: float) -> Message:
        metadata = Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=now().timestamp(),
            ttl=seconds,
            message_type=MESSAGE_TYPE,
        )
        message = make_message(metadata, record_of(packet.header, self._payload_of(packet)))
        message.metadata.__dict__["_message_id"] = message.object_id
        return message

    def _payload_of(self, packet: Packet) -> ArrayRecord:
        known, record = self._payload
        if known is not packet.payload:
            record = payload_record(packet.payload)
            self._payload = packet.payload, record
        return record

    def _why_none_comes(self, asked: _Asked) -> Undelivered | None:
        """Return why no reply can come; Flower does not notice if a node has reconnected."""
        node = self._node(asked.node)
        if str(node.last_activated_at) != asked.activated:
            return _AGAIN
        return None if node.status == NodeStatus.ONLINE else _GONE

    def _node(self, number: int) -> NodeInfo:
        (node,) = self._state.get_node_info(node_ids=[number])
        return node

    def _reply_to(self, ticket: str) -> Packet | Undelivered | None:
        """Return the reply to a message, once all of its objects have arrived."""
        if ticket not in self._delivered:
            try:
                found = self._state.get_message_res({ticket}, self._run)
            except KeyError:
                return _EXPIRED
            if not found:
                return None
            self._replies.setdefault(ticket, found[0].metadata.message_id)
            if found[0].has_error():
                # Never the reason: it may be the text of a client's exception.
                return Undelivered(f"its node has failed (Flower's error {found[0].error.code})")
            self._delivered.add(ticket)
        return self._whole(self._replies.get(ticket, ""))

    def _whole(self, name: str) -> Packet | Undelivered | None:
        """Return the packet in a reply; None while one of its objects has not arrived.

        Objects name their parts, and may name one many times: each is read once.
        """
        contents: dict[str, bytes] = {}
        waiting = [name]
        while waiting:
            part = waiting.pop()
            if part in contents:
                continue
            content = self._state.get_object(self._run, part)
            if content is None:
                return _IN_PARTS
            if not content:
                return None
            contents[part] = content
            waiting += get_object_children_ids_from_object_content(content)
            if len(contents) > MOST_PARTS or sum(map(len, contents.values())) > MOST_BYTES:
                return Packet(b"")
        # An empty packet is refused.
        return packet_from(name, contents) or Packet(b"")

    def _forget(self, ticket: str) -> None:
        self._asked.pop(ticket, None)
        self._delivered.discard(ticket)
        self._state.delete_messages({ticket})
        for name in (ticket, self._replies.pop(ticket, "")):
            self._state.object_store.delete(name)


def _running(state: LinkState) -> tuple[int, int]:
    """Return the numbers of a run that is running, and of its task."""
    run = state.create_run(
        None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
    )
    (info,) = state.get_run_info(run_ids=[run])
    task = info.primary_task_id
    if task is None or state.claim_task(task) is None or not state.activate_task(task):
        raise FederationError("Flower does not start a run")
    return run, task
