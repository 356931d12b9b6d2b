"""What travels for a sum of which the server sees bounded parts, or no part at all.

What comes from elsewhere may have any shapes and dtypes: it is checked when it is read.
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
from ccfcpp.privacy.sums.protocol import BOX_BYTES, LIMBS, PUBLIC_BYTES, Revealed, Terms
from ccfcpp.privacy.sums.shares import PRIME, Share

EXCHANGES_OF_A_SUM = 4
"""Three stages, and the exchange itself."""


@dataclass(frozen=True)
class Rows:
    """A row of bytes, or of numbers, for each of some clients.

    Attributes:
        clients: Their numbers, int64 of shape (clients,).
        rows: uint8 or int64 of shape (clients, width).
    """

    clients: Tensor
    rows: Tensor

    @staticmethod
    def of(rows: Mapping[int, bytes] | Mapping[int, Share], width: int) -> "Rows":
        """Rows of bytes or of shares, by client."""
        found = [
            np.frombuffer(row, np.uint8) if isinstance(row, bytes) else row.astype(np.int64)
            for row in rows.values()
        ]
        table = np.stack(found) if found else np.zeros((0, width), np.int64)
        return Rows(torch.tensor([*rows], dtype=torch.int64), torch.from_numpy(table))

    def bytes_of(self, width: int) -> dict[int, bytes]:
        """The rows of bytes by client."""
        return {number: row.numpy().tobytes() for number, row in self._read(torch.uint8, width)}

    def shares(self) -> dict[int, Share]:
        """The rows of shares by client."""
        found = self._read(torch.int64, LIMBS)
        if any(bool(((row < 0) | (row >= PRIME)).any()) for _, row in found):
            raise RefusedUpdateError("a share holds a number beyond its prime")
        return {number: row.numpy().astype(np.uint32) for number, row in found}

    def _read(self, dtype: torch.dtype, width: int) -> list[tuple[int, Tensor]]:
        numbers = _numbers(self.clients)
        _check(self.rows, dtype, len(numbers), width)
        return list(zip(numbers, self.rows.cpu(), strict=True))


@dataclass(frozen=True)
class Begun:
    """A sum begins, for which so many clients are asked."""

    asked: int


@dataclass(frozen=True)
class Keys:
    """A client's public keys, uint8 of shape (64,)."""

    public: Tensor

    @staticmethod
    def of(public: bytes) -> "Keys":
        """The message of some keys."""
        return Keys(torch.from_numpy(np.frombuffer(public, np.uint8).copy()))

    def read(self) -> bytes:
        """The keys themselves."""
        _check(self.public, torch.uint8, PUBLIC_BYTES)
        return self.public.cpu().numpy().tobytes()


@dataclass(frozen=True)
class Mail:
    """All boxes; nobody but its receiver can open one."""

    receivers: Tensor
    boxes: Rows

    @staticmethod
    def of(routed: Mapping[int, Mapping[int, bytes]]) -> "Mail":
        """The boxes, by receiver and sender."""
        inboxes = [Rows.of(inbox, BOX_BYTES) for inbox in routed.values() if inbox]
        receivers = [receiver for receiver, inbox in routed.items() for _ in inbox]
        senders = torch.cat([inbox.clients for inbox in inboxes])
        contents = torch.cat([inbox.rows for inbox in inboxes])
        return Mail(torch.tensor(receivers), Rows(senders, contents))

    def to(self, client: int) -> dict[int, bytes]:
        """The boxes for a client, by sender."""
        _check(self.receivers, torch.int64, len(self.boxes.clients))
        place = (self.receivers == client).nonzero().flatten()
        return Rows(self.boxes.clients[place], self.boxes.rows[place]).bytes_of(BOX_BYTES)


@dataclass(frozen=True)
class Bounded:
    """The parts of a client's update that add up, float64 by name."""

    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Masked:
    """The parts of a client's update that add up, under masks.

    Attributes:
        words: All numbers, in the order of their parts' names, as integers modulo 2 to the bits of
            a number: int32 or int64 of shape (numbers,).
    """

    words: Tensor

    @staticmethod
    def of(words: Words) -> "Masked":
        """The message of masked numbers."""
        return Masked(torch.from_numpy(words.view(np.dtype(f"<i{words.itemsize}"))))

    def read(self, form: FixedPoint, numbers: int) -> Words:
        """The masked numbers."""
        _check(self.words, torch.int32 if form.bits == 32 else torch.int64, numbers)
        return self.words.cpu().numpy().view(form.words)


@dataclass(frozen=True)
class Arrived:
    """The clients whose masked numbers the server has, int64 of shape (clients,)."""

    clients: Tensor

    def read(self) -> list[int]:
        """Their numbers."""
        return _numbers(self.clients)


@dataclass(frozen=True)
class Shown:
    """A client's shares of the seeds of some clients, and of the private keys of others."""

    seeds: Rows
    keys: Rows

    @staticmethod
    def of(shown: Revealed) -> "Shown":
        """The message of some shares."""
        return Shown(Rows.of(shown.seeds, LIMBS), Rows.of(shown.keys, LIMBS))

    def read(self) -> Revealed:
        """The shares by client."""
        return Revealed(self.seeds.shares(), self.keys.shares())


KEYS = Exchange("secure sum, keys", Begun, Keys)
SHARES = Exchange("secure sum, shares", Rows, Rows)
UNMASKING = Exchange("secure sum, unmasking", Arrived, Shown)


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
    """The type of a message with all boxes."""
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
