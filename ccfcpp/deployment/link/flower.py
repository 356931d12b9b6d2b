"""Conversion between packets and Flower's records.

Flower starts a process for each message, so this module imports nothing that is slow.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from ccfcpp.deployment.link.packet import Packet

MESSAGE_TYPE = "train.exchange"
_HEADER, _PAYLOAD, _FILE = "head", "payload", "file"
"""Names of the records. They are part of what travels, so they stay as they are."""


def record_of(packet: Packet) -> RecordDict:
    """Return a packet as Flower carries it.

    The payload is one array, since many small ones take ten times as long. It is separate from the
    header, so that a SuperLink stores once what goes to many clients.
    """
    array = Array("uint8", (len(packet.payload),), "safetensors", packet.payload)
    return RecordDict(
        {
            _HEADER: ConfigRecord({_HEADER: packet.header}),
            _PAYLOAD: ArrayRecord({_FILE: array}),
        }
    )


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
