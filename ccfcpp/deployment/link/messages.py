"""What travels between the server and a client: a head, and one payload of tensors.

A head is JSON of a fixed form, a payload is a safetensors file; neither can hold code. Both are
limited in size before they are parsed, and whatever has another form is an ``MessageError``, whose
message names what is wrong and quotes nothing.
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
from ccfcpp.deployment.link.run_spec import Facts, RunSpec, Text
from ccfcpp.engine.payload import PayloadError, pack, unpack

T = TypeVar("T")
_MOST_NAMES_BYTES = 1 << 22
_LENGTH_BYTES = 8
"""A safetensors file begins with the length of the list of its tensors."""


class MessageError(ValueError):
    """What has arrived cannot be used; the message says why."""


Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Version = Annotated[str, Field(pattern=r"^([0-9]{1,7}\.[0-9]{1,7}\.[0-9a-f]{32})?$")]
Number = Annotated[int, Field(ge=0, lt=10**7)]


def new_token() -> str:
    """A number that nobody can guess, as 32 hexadecimal digits."""
    return secrets.token_hex(16)


class _Head(Section):
    model_config = ConfigDict(populate_by_name=True)

    @classmethod
    def read(cls, content: bytes) -> Self:
        """A head from its JSON.

        Raises:
            MessageError: It is too long or of another form.
        """
        if len(content) > MOST_HEADER_BYTES:
            raise MessageError(f"its head has {len(content)} bytes, over {MOST_HEADER_BYTES}")
        try:
            return cls.model_validate_json(content)
        except (ValidationError, RecursionError) as error:
            raise MessageError("its head is of another form") from error

    def written(self) -> bytes:
        """The JSON."""
        return self.model_dump_json(exclude_defaults=True, by_alias=True).encode()


class Request(_Head):
    """What the server asks of a client.

    Attributes:
        kind: ``hello``: to tell of its images; ``work``: to do the work of an exchange.
        run: Which run it is; it stays the same when a run goes on.
        nonce: To be given back: an answer without it is not to this order.
        spec: What the client has to know of the run.
        client: The client's number, which seeds its random numbers.
        exchange: Name of the exchange.
        round: Number of the round, from 0.
        index: Place of the exchange in its round, from 0.
        last: Whether the round is over with it.
        remembered: The version of the client's memory to go on with; empty for none.
        kept: The version that the server's checkpoint names: it may be wanted again.
    """

    kind: Literal["hello", "work"]
    run: Token
    nonce: Token
    spec: RunSpec = Field(alias="charter")
    client: Number = 0
    exchange: Text = ""
    round: Number = 0
    index: Number = 0
    last: bool = False
    remembered: Version = ""
    kept: Version = ""

    @property
    def version(self) -> str:
        """The version that the client's memory gets where this work changes it.

        With the nonce in it, no two works give versions of one name, also where a round is run
        again.
        """
        return f"{self.round}.{self.index}.{self.nonce}"


class Response(_Head):
    """What a client says.

    Attributes:
        nonce: The order's.
        status: ``done``; ``refused``: the system itself says why there is no update; ``forbidden``:
            the owner does not allow it; ``lost``: the memory to go on with is not there;
            ``failed``: anything else, and the client's own log says what.
        reason: One line; empty where the work failed, since an error's text may quote anything.
        remembers: Whether the memory has changed, to the order's ``version``.
        facts: The answer to ``hello``.
    """

    nonce: Token
    status: Literal["done", "refused", "forbidden", "lost", "failed"] = "done"
    reason: Text = ""
    remembers: bool = False
    facts: Facts | None = None


def shown(text: str) -> str:
    """Text from elsewhere on one line, without what a terminal would obey."""
    line = " ".join(text.split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)[:200]


def serialize(payload: object) -> bytes:
    """A dataclass of tensors and numbers as a safetensors file."""
    # Tensors may be views into one memory; each goes by itself.
    tensors = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in pack(payload).items()
    }
    return bytes(save(tensors))


def deserialize(
    kind: type[T], content: bytes, device: torch.device, most_bytes: int = MOST_PAYLOAD_BYTES
) -> T:
    """The dataclass that ``serialize`` made a file of.

    Args:
        kind: Its type.
        content: The file, from anybody.
        device: Where the tensors go.
        most_bytes: How large the file may be.

    Raises:
        MessageError: It is too large, no such file, or one of other fields.
    """
    if len(content) > most_bytes:
        raise MessageError(f"it has {len(content)} bytes, over {most_bytes}")
    _check_names(content)
    try:
        # Memory of PyTorch's own: rounding may depend on how a tensor is aligned.
        tensors = {name: t.clone().to(device) for name, t in load(content).items()}
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise MessageError("it is no safetensors file") from error
    try:
        payload = unpack(kind, tensors)
    except PayloadError as error:
        raise MessageError(shown(str(error))) from error
    if extra := tensors.keys() - pack(payload).keys():
        raise MessageError(shown(f"{kind.__name__} has no {min(extra)!r}"))
    return payload


def _check_names(content: bytes) -> None:
    """Refuse a file whose list of tensors is too long, or names one of them twice."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if length > _MOST_NAMES_BYTES:
        raise MessageError(f"its list of tensors has {length} bytes, over {_MOST_NAMES_BYTES}")
    try:
        json.loads(content[_LENGTH_BYTES : _LENGTH_BYTES + length], object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise MessageError("its list of tensors is of another form") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found
