"""Conversion between packets (a header and a payload, as bytes) and Flower's records."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from ccfcpp.deployment.link.flower_internals import inflate_object_from_contents
from ccfcpp.deployment.link.packet import Packet

MESSAGE_TYPE = "train.exchange"
_HEADER, _PAYLOAD, _FILE = "head", "payload", "file"
"""Names of the records in a message; clients of older versions expect the same."""


def payload_record(payload: bytes) -> ArrayRecord:
    """Return a payload as one array in a record of Flower; many arrays would be much slower."""
    return ArrayRecord({_FILE: Array("uint8", (len(payload),), "safetensors", payload)})


def to_records(header: bytes, payload: ArrayRecord) -> RecordDict:
    """Return the content of a message of Flower: the header's record and the payload's record.

    They are separate, so that a payload for many clients is stored once.
    """
    return RecordDict({_HEADER: ConfigRecord({_HEADER: header}), _PAYLOAD: payload})


def packet_of(message: Message) -> Packet:
    """Return the packet (header and payload) in one of Flower's messages.

    Raises:
        ValueError: The message does not hold exactly one packet.
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


def decode_packet(name: str, contents: dict[str, bytes]) -> Packet | None:
    """Decode a received message, and return the packet in it; None if either is invalid.

    Args:
        name: ID of the message's root object.
        contents: The bytes of all objects by their IDs. They are removed as they are read, to save
            memory.
    """
    try:
        message = inflate_object_from_contents(name, contents)
        assert isinstance(message, Message)
        return packet_of(message)
    except Exception:  # Untrusted bytes can make Flower's parsers fail in any way.
        return None
