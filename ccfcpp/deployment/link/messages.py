"""Requests and responses: a header, and a payload of tensors.

A header is JSON with a fixed schema and a payload is a safetensors file; neither can hold code.
Their sizes are checked before they are parsed. An invalid message raises ``MessageError``, whose
text says what is wrong without quoting the message.
"""

import json
import secrets
from typing import Annotated, Literal, Self, TypeVar

import torch
from pydantic import ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from ccfcpp.core.config import Section
from ccfcpp.deployment.link.packet import MOST_HEADER_BYTES, MOST_PAYLOAD_BYTES
from ccfcpp.deployment.link.run_spec import Facts, RunSpec, Size, Text
from ccfcpp.deployment.link.server_status import Number
from ccfcpp.engine.payload import PayloadError, pack, unpack

T = TypeVar("T")
_MOST_NAMES_BYTES = 1 << 22
_LENGTH_BYTES = 8
"""Size of the number at the start of a safetensors file, which is the length of its header."""


Status = Literal["done", "refused", "forbidden", "lost", "failed"]


class MessageError(ValueError):
    """A received message cannot be used; the text says why."""


Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Version = Annotated[str, Field(pattern=r"^([0-9]{1,7}\.[0-9]{1,7}\.[0-9a-f]{32})?$")]


def new_token() -> str:
    """Return a random token of 32 hexadecimal digits that cannot be guessed."""
    return secrets.token_hex(16)


class _Header(Section):
    model_config = ConfigDict(populate_by_name=True)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Parse a header from its JSON.

        Raises:
            MessageError: The JSON is too long or does not fit the schema.
        """
        if len(content) > MOST_HEADER_BYTES:
            raise MessageError(f"its header has {len(content)} bytes, over {MOST_HEADER_BYTES}")
        try:
            return cls.model_validate_json(content)
        except (ValidationError, RecursionError) as error:
            raise MessageError("its header is of another form") from error

    def to_json(self) -> bytes:
        """Return the header as JSON."""
        return self.model_dump_json(exclude_defaults=True, by_alias=True).encode()


class Request(_Header):
    """Header of a request from the server to a client.

    Attributes:
        kind: ``hello`` asks for facts on the client's images; ``work`` asks for its update in an
            exchange.
        run: Token (random identifier) of the run; a resumed run keeps it.
        nonce: Random token of this request, which the response must repeat.
        spec: Description of the run.
        client: Number of the client, which seeds its random numbers.
        exchange: Name of the exchange.
        round: Number of the round, from 0.
        index: Position of the exchange in its round, from 0.
        last: Whether it is the last exchange of the round.
        samples: Number of samples of all clients that are asked; 0 if it is secret.
        session: How often the server was restarted in this run.
        remembered: Version of the client's local state (memory) to start from; empty: none.
        kept: Version of the memory in the server's last checkpoint, from which a run is resumed.
    """

    kind: Literal["hello", "work"]
    run: Token
    nonce: Token
    # In messages and in saved files its key is "charter".
    spec: RunSpec = Field(alias="charter")
    client: Number = 0
    exchange: Text = ""
    round: Number = 0
    index: Number = 0
    last: bool = False
    samples: Size = 0
    session: Number = 0
    remembered: Version = ""
    kept: Version = ""

    @property
    def version(self) -> str:
        """Name for the version of the client's memory (local state) after this exchange.

        It contains the nonce, so that a repeated round gets a new version.
        """
        return f"{self.round}.{self.index}.{self.nonce}"


class Response(_Header):
    """Header of a client's response.

    Attributes:
        nonce: The request's nonce.
        status: ``done``; ``refused``: the algorithm has no update, for the stated reason;
            ``forbidden``: the client's owner does not allow it; ``lost``: the requested version of
            its memory is missing; ``failed``: another error, which only the client's log explains.
        reason: The reason in one line; empty for ``failed``, since an error may quote private data.
        remembers: Whether the client has saved its memory (local state) under the request's
            ``version``.
        facts: Facts on the client's images, in the response to ``hello``.
    """

    nonce: Token
    status: Status = "done"
    reason: Text = ""
    remembers: bool = False
    facts: Facts | None = None

    @classmethod
    def read_reply(cls, request: Request, content: bytes) -> Self:
        """Parse the response to a request.

        Raises:
            MessageError: The JSON does not fit the schema, or answers another request.
        """
        response = cls.read(content)
        if response.nonce != request.nonce:
            raise MessageError("it answers another request")
        return response

    @property
    def why(self) -> str:
        """The reason why the client has sent no update, as text for the server's log."""
        if self.status == "lost":
            return "what it remembered is gone: it starts anew"
        if self.status in ("refused", "forbidden"):
            return printable(self.reason) or self.status
        return "its work failed: its own log says why"


def printable(text: str, most: int = 200) -> str:
    """Return untrusted text as one line of ``most`` characters, without control characters."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:most]


def serialize(payload: object) -> bytes:
    """Return ``payload``, a dataclass of tensors and numbers, as bytes of a safetensors file."""
    # Tensors may share storage, which safetensors refuses: each is copied.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in pack(payload).items()
    }
    return bytes(save(tensors))


def deserialize(kind: type[T], content: bytes, device: torch.device) -> T:
    """Return the object of dataclass ``kind`` in a safetensors file made by ``serialize``.

    Raises:
        MessageError: The file is too large, cannot be read, or has other fields.
    """
    if len(content) > MOST_PAYLOAD_BYTES:
        raise MessageError(f"it has {len(content)} bytes, over {MOST_PAYLOAD_BYTES}")
    _check_names(content)
    try:
        # The copy has PyTorch's alignment, on which rounding may depend.
        tensors = {name: t.clone().to(device) for name, t in load(content).items()}
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise MessageError("it is no safetensors file") from error
    try:
        payload = unpack(kind, tensors)
    except PayloadError as error:
        raise MessageError(printable(str(error))) from error
    if extra := tensors.keys() - pack(payload).keys():
        raise MessageError(printable(f"{kind.__name__} has no {min(extra)!r}"))
    return payload


def _check_names(content: bytes) -> None:
    """Raise ``MessageError`` if a safetensors file lists too many tensors, or a name twice."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if length > _MOST_NAMES_BYTES:
        raise MessageError(f"its list of tensors has {length} bytes, over {_MOST_NAMES_BYTES}")
    try:
        json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MessageError("its list of tensors is of another form") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name is there twice")
    return fields
