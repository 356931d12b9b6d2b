"""Parcels, and how they pass between processes of one machine. It imports nothing that is slow."""

from multiprocessing.connection import Connection
from typing import NamedTuple

MOST_HEAD_BYTES = 1 << 20
MOST_PAYLOAD_BYTES = 1 << 30
"""More than any model here; a server and a client may set less."""


class Parcel(NamedTuple):
    """What goes over the wire, one way.

    Attributes:
        head: JSON of an ``Order`` or an ``Answer``.
        payload: A safetensors file; empty where nothing goes with the head.
    """

    head: bytes
    payload: bytes = b""


def send(connection: Connection, parcel: Parcel) -> None:
    """Pass a parcel on: bytes as they are, never a pickle."""
    connection.send_bytes(parcel.head)
    connection.send_bytes(parcel.payload)


def receive(connection: Connection, most_bytes: int = MOST_PAYLOAD_BYTES) -> Parcel:
    """Take a parcel.

    Raises:
        EOFError: The other process is gone.
        OSError: The parcel is too large.
    """
    return Parcel(connection.recv_bytes(MOST_HEAD_BYTES), connection.recv_bytes(most_bytes))
