"""Conversion between packets and Flower's records."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from ccfcpp.deployment.link.flower_internals import inflate_object_from_contents
from ccfcpp.deployment.link.packet import Packet

MESSAGE_TYPE = "train.exchange"
_HEADER, _PAYLOAD, _FILE = "head", "payload", "file"
"""Names of the records. They are part of what travels, so they stay as they are."""


def payload_record(payload: bytes) -> ArrayRecord:
    """Return a payload as Flower's record with one array, since many take ten times as long."""
    return ArrayRecord({_FILE: Array("uint8", (len(payload),), "safetensors", payload)})


def record_of(header: bytes, payload: ArrayRecord) -> RecordDict:
    """Return a header and a payload as Flower's records.

    They are separate, so that a payload that goes to many clients is stored once.
    """
    return RecordDict({_HEADER: ConfigRecord({_HEADER: header}), _PAYLOAD: payload})


def packet_of(message: Message) -> Packet:
    """Return the packet in a message.

    Raises:
        ValueError: The message holds anything else.
    """
    content = message.content
    if set(content) != {_HEADER, _PAYLOAD}:
        raise ValueError("the message has other records")
    header, payload = content[_HEADER], content[_PAYLOAD]
    if not isinstance(header, ConfigRecord) or not isinstance(payload, ArrayRecord):
        raise ValueError("the message has records of other kinds")
    if set(header) != {_HEADER} or set(payload) != {_FILE}:
        raise ValueError("the message's records hold something else")
    text = header[_HEADER]
    if not isinstance(text, bytes):
        raise ValueError("the message's header is of another type")
    return Packet(text, payload[_FILE].data)


def packet_from(name: str, contents: dict[str, bytes]) -> Packet | None:
    """Return the packet in a message that has arrived; None if it holds anything else.

    Args:
        name: Name of the message's object.
        contents: The bytes of all objects by their names. They are removed as they are read, to
            save memory.
    """
    try:
        message = inflate_object_from_contents(name, contents)
        assert isinstance(message, Message)
        return packet_of(message)
    except Exception:  # Bytes of others can make Flower's readers fail in any way.
        return None
