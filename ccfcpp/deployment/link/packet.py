"""Packets, and the link that carries them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

MOST_HEADER_BYTES = 1 << 20
MOST_PAYLOAD_BYTES = 1 << 30
"""The largest header and the largest payload, which is more than any model here needs."""
MOST_PARTS = 256
MOST_BYTES = MOST_HEADER_BYTES + MOST_PAYLOAD_BYTES + 2**20
"""Bounds of a packet in Flower's message, which splits what is larger than 5 MiB."""


class Packet(NamedTuple):
    """The bytes of one request or one response.

    Attributes:
        header: JSON of a ``Request`` or a ``Response``.
        payload: A safetensors file; empty if the header comes alone.
    """

    header: bytes
    payload: bytes = b""


@dataclass(frozen=True)
class Undelivered:
    """The result in place of a response if a client's node has failed."""

    reason: str


class Link(Protocol):
    """Interface that carries packets between server and clients, such as Flower's grid."""

    def online(self) -> Mapping[str, int]:
        """Return the nodes that are online, by the name under which their key is registered."""

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Send a packet to a node.

        Args:
            node: The receiver.
            packet: The packet.
            seconds: Largest time that the packet, or the response, may take.

        Returns:
            A ticket for ``pull``; None if the node is offline.
        """

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """Return the response to a packet; None if there is none yet."""


class Nobody:
    """A link to no client, for a run that is not started."""

    def online(self) -> Mapping[str, int]:
        """Return no node."""
        return {}

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Return no ticket."""
        return None

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """Return no response."""
        return None
