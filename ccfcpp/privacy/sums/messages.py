"""What travels for a sum of which the server sees no summand, or bounded ones.

The types of a secure sum can be made of what ``ccfcpp.privacy.sums.protocol`` gives, and give it
back. What comes from elsewhere may have any shapes and dtypes: it is checked when it is read.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ccfcpp.engine.exchange import AnyExchange, Exchange, RefusedUpdateError, Task
from ccfcpp.engine.parts import Sum
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words
from ccfcpp.privacy.sums.masks import KEY_BYTES
from ccfcpp.privacy.sums.protocol import BOX_BYTES, LIMBS, PublicKeys, Revealed, Terms
from ccfcpp.privacy.sums.shares import Share

EXCHANGES_OF_A_SUM = 4
"""Three stages, and the exchange itself."""


@dataclass(frozen=True)
class Begun:
    """A sum begins.

    Attributes:
        asked: How many clients are asked.
    """

    asked: int


@dataclass(frozen=True)
class Keys:
    """A client's public keys, each uint8 of shape (32,)."""

    sealing: Tensor
    masks: Tensor

    @staticmethod
    def of(keys: PublicKeys) -> "Keys":
        """From the keys themselves."""
        return Keys(_tensor_of(keys.sealing), _tensor_of(keys.masks))

    def read(self) -> PublicKeys:
        """The keys themselves."""
        _check(self.sealing, torch.uint8, KEY_BYTES)
        _check(self.masks, torch.uint8, KEY_BYTES)
        return PublicKeys(_bytes_of(self.sealing), _bytes_of(self.masks))


@dataclass(frozen=True)
class Listed:
    """The public keys of all that are there.

    Attributes:
        clients: Their numbers, int64 of shape (clients,).
        sealing: uint8 of shape (clients, 32).
        masks: Likewise.
    """

    clients: Tensor
    sealing: Tensor
    masks: Tensor

    @staticmethod
    def of(roster: Mapping[int, PublicKeys]) -> "Listed":
        """From the keys by client."""
        sealing = [_tensor_of(each.sealing) for each in roster.values()]
        masks = [_tensor_of(each.masks) for each in roster.values()]
        return Listed(torch.tensor([*roster]), torch.stack(sealing), torch.stack(masks))

    def read(self) -> dict[int, PublicKeys]:
        """The keys by client."""
        numbers = _numbers(self.clients)
        _check(self.sealing, torch.uint8, len(numbers), KEY_BYTES)
        _check(self.masks, torch.uint8, len(numbers), KEY_BYTES)
        rows = zip(numbers, self.sealing, self.masks, strict=True)
        return {n: PublicKeys(_bytes_of(seal), _bytes_of(mask)) for n, seal, mask in rows}


@dataclass(frozen=True)
class Boxes:
    """What a client has sealed for others.

    Attributes:
        receivers: int64 of shape (boxes,).
        contents: uint8 of shape (boxes, bytes).
    """

    receivers: Tensor
    contents: Tensor

    @staticmethod
    def of(boxes: Mapping[int, bytes]) -> "Boxes":
        """From the boxes by receiver."""
        return Boxes(torch.tensor([*boxes]), _stacked([*boxes.values()]))

    def read(self) -> dict[int, bytes]:
        """The boxes by receiver."""
        numbers = _numbers(self.receivers)
        _check(self.contents, torch.uint8, len(numbers), BOX_BYTES)
        return dict(zip(numbers, map(_bytes_of, self.contents), strict=True))


@dataclass(frozen=True)
class Mail:
    """All boxes; nobody but its receiver can open one.

    Attributes:
        senders: int64 of shape (boxes,).
        receivers: Likewise.
        contents: uint8 of shape (boxes, bytes).
    """

    senders: Tensor
    receivers: Tensor
    contents: Tensor

    @staticmethod
    def of(routed: Mapping[int, Mapping[int, bytes]]) -> "Mail":
        """From the boxes by receiver and sender."""
        rows = [(s, r, box) for r, inbox in routed.items() for s, box in inbox.items()]
        numbers = torch.tensor([row[:2] for row in rows], dtype=torch.int64).view(-1, 2)
        return Mail(numbers[:, 0], numbers[:, 1], _stacked([box for _, _, box in rows]))

    def to(self, client: int) -> dict[int, bytes]:
        """The boxes for a client, by sender."""
        place = (self.receivers == client).nonzero().flatten()
        return Boxes(self.senders[place], self.contents[place]).read()


@dataclass(frozen=True)
class Bounded:
    """What adds up of a client's update.

    Attributes:
        parts: float64 by name.
    """

    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Masked:
    """What adds up of a client's update, under masks.

    Attributes:
        words: All numbers, in the order of their parts' names, as integers modulo 2 to the bits of
            a number: int32 or int64 of shape (numbers,).
    """

    words: Tensor

    @staticmethod
    def of(words: Words) -> "Masked":
        """From the masked numbers."""
        return Masked(torch.from_numpy(words.view(np.dtype(f"<i{words.itemsize}"))))

    def read(self, form: FixedPoint, numbers: int) -> Words:
        """The masked numbers."""
        kind = torch.int32 if form.bits == 32 else torch.int64
        _check(self.words, kind, numbers)
        return self.words.cpu().numpy().view(form.words)


@dataclass(frozen=True)
class Arrived:
    """Whose masked numbers the server has, int64 of shape (clients,)."""

    clients: Tensor

    def read(self) -> list[int]:
        """Their numbers."""
        return _numbers(self.clients)


@dataclass(frozen=True)
class Shown:
    """A client's shares of what takes masks off.

    Attributes:
        seeds_of: Whose seeds, int64 of shape (there,).
        seeds: Its shares of them, int64 of shape (there, numbers).
        keys_of, keys: The same for the keys of those who are gone.
    """

    seeds_of: Tensor
    seeds: Tensor
    keys_of: Tensor
    keys: Tensor

    @staticmethod
    def of(shown: Revealed) -> "Shown":
        """From the shares by client."""
        return Shown(*_rows_of(shown.seeds), *_rows_of(shown.keys))

    def read(self) -> Revealed:
        """The shares by client."""
        return Revealed(_shares(self.seeds_of, self.seeds), _shares(self.keys_of, self.keys))


KEYS: Exchange[Begun, Keys] = Exchange("secure sum, keys", Begun, Keys)
SHARES: Exchange[Listed, Boxes] = Exchange("secure sum, shares", Listed, Boxes)
UNMASKING: Exchange[Arrived, Shown] = Exchange("secure sum, unmasking", Arrived, Shown)


def within_bounds(exchange: AnyExchange) -> Exchange[Any, Bounded]:
    """An exchange that adds up, of whose updates the bounded parts are sent."""
    parts = {"parts": Sum()} if exchange.is_sum else {}
    name = f"{exchange.name} within bounds"
    return Exchange(name, exchange.message, Bounded, parts, uses_memory=exchange.uses_memory)


def under_masks(exchange: AnyExchange) -> Exchange[Any, Masked]:
    """An exchange that adds up, whose updates come under masks; its message brings the boxes."""
    name, message = f"{exchange.name} under masks", _with_mail(exchange.message)
    return Exchange(name, message, Masked, uses_memory=exchange.uses_memory)


_WITH_MAIL: dict[type[Any], type[Any]] = {}
"""One type for each type of message."""


def _with_mail(message: type[Any]) -> type[Any]:
    """A message and all boxes."""
    if message not in _WITH_MAIL:
        fields = [("message", message), ("mail", Mail)]
        name = f"{message.__name__}WithMail"
        _WITH_MAIL[message] = dataclasses.make_dataclass(name, fields, frozen=True)
    return _WITH_MAIL[message]


def terms_of(config: PrivacyConfig, task: Task, asked: int) -> Terms:
    """What both sides know of the sum of a task over so many clients."""
    needed = 2 * asked // 3 + 1 if config.threshold is None else config.threshold
    purpose = f"{task.system}/{task.round}/{task.index}".encode()
    return Terms(purpose, max(2, needed), FixedPoint(config.bits, config.behind_the_point), asked)


def _check(tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
    """Raise ``RefusedUpdateError`` where a tensor is of another form."""
    if tensor.dtype != dtype or tensor.shape != shape:
        raise RefusedUpdateError(
            f"there is {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {shape}"
        )


def _numbers(clients: Tensor) -> list[int]:
    _check(clients, torch.int64, clients.numel())
    numbers: list[int] = clients.tolist()
    if len(set(numbers)) < len(numbers):
        raise RefusedUpdateError("a client is there twice")
    return numbers


def _bytes_of(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def _tensor_of(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def _stacked(boxes: list[bytes]) -> Tensor:
    return _tensor_of(b"".join(boxes)).view(len(boxes), BOX_BYTES)


def _rows_of(shares: Mapping[int, Share]) -> tuple[Tensor, Tensor]:
    rows = [torch.from_numpy(share.astype(np.int64)) for share in shares.values()]
    numbers = torch.tensor([*shares], dtype=torch.int64)
    return numbers, torch.stack(rows) if rows else torch.zeros(0, LIMBS, dtype=torch.int64)


def _shares(of: Tensor, rows: Tensor) -> dict[int, Share]:
    numbers = _numbers(of)
    _check(rows, torch.int64, len(numbers), LIMBS)
    return dict(zip(numbers, rows.cpu().numpy().astype(np.uint32), strict=True))
