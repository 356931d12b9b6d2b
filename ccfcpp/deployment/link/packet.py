"""Parcels, and how they pass between processes of one machine. It imports nothing that is slow."""

from multiprocessing.connection import Connection
from typing import NamedTuple

MOST_HEADER_BYTES = 1 << 20
MOST_PAYLOAD_BYTES = 1 << 30
"""More than any model here; a server and a client may set less."""


class Packet(NamedTuple):
    """What goes over the wire, one way.

    Attributes:
        header: JSON of an ``Request`` or an ``Response``.
        payload: A safetensors file; empty where nothing goes with the head.
    """

    header: bytes
    payload: bytes = b""


def send(connection: Connection, packet: Packet) -> None:
    """Pass a packet on: bytes as they are, never a pickle."""
    connection.send_bytes(packet.header)
    connection.send_bytes(packet.payload)


def receive(connection: Connection, most_bytes: int = MOST_PAYLOAD_BYTES) -> Packet:
    """Take a packet.

    Raises:
        EOFError: The other process is gone.
        OSError: The packet is too large.
    """
    return Packet(connection.recv_bytes(MOST_HEADER_BYTES), connection.recv_bytes(most_bytes))
