"""Packets (the bytes of requests and responses), and the interface that delivers them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

MOST_HEADER_BYTES = 1 << 20
MOST_PAYLOAD_BYTES = 1 << 30
"""Largest header and largest payload, in bytes; more than any model here needs."""
MOST_PARTS = 256
MOST_BYTES = MOST_HEADER_BYTES + MOST_PAYLOAD_BYTES + 2**20
"""Largest number of objects in Flower's message of a packet, and their largest total size, in
bytes. Flower splits objects larger than 5 MiB."""


class Packet(NamedTuple):
    """The bytes of one request or one response.

    Attributes:
        header: JSON of a ``Request`` or a ``Response``.
        payload: A safetensors file; empty if there are no tensors.
    """

    header: bytes
    payload: bytes = b""


@dataclass(frozen=True)
class Undelivered:
    """Result of ``Link.pull`` if no response to a packet can come any more, with the reason."""

    reason: str


class Link(Protocol):
    """Interface with which the server sends packets to clients and receives the responses."""

    def online(self) -> Mapping[str, int]:
        """Return the ID (of Flower's node) of each client that is online, by the client's name."""

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Send a packet to a client.

        Args:
            node: Node ID of the client.
            packet: The packet.
            seconds: Time limit for the response, from now.

        Returns:
            A ticket (the message's ID) for ``pull``; None if the client is offline.
        """

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """Return the response to the packet that was sent with a ticket.

        It is None if the response has not arrived yet, and ``Undelivered`` if it never will.
        """
