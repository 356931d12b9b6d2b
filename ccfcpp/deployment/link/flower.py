"""Parcels as Flower's records, and the processes of Flower 1.41. Nothing else here knows Flower.

It imports nothing of ours that is slow: a client's node starts a process for each message.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from ccfcpp.deployment.link.packet import Packet

MESSAGE_TYPE = "train.exchange"
_HEAD, _PAYLOAD, _FILE = "head", "payload", "file"


def record_of(packet: Packet) -> RecordDict:
    """A packet as Flower carries it.

    The payload is one array: many small ones take ten times as long. It is apart from the head, so
    that a SuperLink holds once what goes to many clients.
    """
    array = Array("uint8", (len(packet.payload),), "safetensors", packet.payload)
    return RecordDict(
        {
            _HEAD: ConfigRecord({_HEAD: packet.header}),
            _PAYLOAD: ArrayRecord({_FILE: array}),
        }
    )


def packet_of(message: Message) -> Packet:
    """The packet in a message.

    Raises:
        ValueError: It holds anything else.
    """
    content = message.content
    if set(content) != {_HEAD, _PAYLOAD}:
        raise ValueError("the message has other records")
    head, payload = content[_HEAD], content[_PAYLOAD]
    if not isinstance(head, ConfigRecord) or not isinstance(payload, ArrayRecord):
        raise ValueError("the message has records of other kinds")
    if set(head) != {_HEAD} or set(payload) != {_FILE}:
        raise ValueError("the message's records hold something else")
    text = head[_HEAD]
    if not isinstance(text, bytes):
        raise ValueError("the message's head is of another type")
    return Packet(text, payload[_FILE].data)
