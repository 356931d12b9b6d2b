"""What travels for a sum of which the server sees bounded parts, or no part at all.

What comes from elsewhere may have any shapes and dtypes: it is checked when it is read.
"""

import dataclasses
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ccfcpp.engine.exchange import AnyExchange, Exchange, RefusedUpdateError
from ccfcpp.engine.parts import Sum
from ccfcpp.engine.payload import pack
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words
from ccfcpp.privacy.sums.identity import SIGNATURE_BYTES
from ccfcpp.privacy.sums.masks import TAG_BYTES
from ccfcpp.privacy.sums.protocol import (
    BOX_BYTES,
    LIMBS,
    PUBLIC_BYTES,
    Neighbour,
    Offer,
    Revealed,
)
from ccfcpp.privacy.sums.shares import PRIME, Share

EXCHANGES_OF_A_SUM = 5
"""Keys, shares, agreement and unmasking, and the exchange itself."""
NEIGHBOUR_BYTES = 1 + PUBLIC_BYTES + SIGNATURE_BYTES
"""Of what a client is told of a neighbour."""
_NUMBER = torch.int32
"""Of clients."""
_MOST_CLIENTS = 10**5
"""Clients of a message: more of them would fill a memory, and are in no sum."""


@dataclass(frozen=True)
class Rows:
    """A row of bytes, or of numbers, for each of some clients.

    Attributes:
        clients: Their numbers, int32 of shape (clients,).
        rows: uint8 or int32 of shape (clients, width).
    """

    clients: Tensor
    rows: Tensor

    @staticmethod
    def of(rows: Mapping[int, bytes], width: int) -> "Rows":
        """Rows of bytes, by client."""
        return Rows(numbers_of(rows), _table(rows.values(), width))

    @staticmethod
    def of_shares(shares: Mapping[int, Share]) -> "Rows":
        """Rows of shares, by client."""
        table = np.array([*shares.values()], np.int32).reshape(len(shares), LIMBS)
        return Rows(numbers_of(shares), torch.from_numpy(table))

    def bytes_of(self, width: int) -> dict[int, bytes]:
        """The rows of bytes by client."""
        return {number: row.numpy().tobytes() for number, row in self._read(torch.uint8, width)}

    def shares(self) -> dict[int, Share]:
        """The rows of shares by client."""
        found = self._read(torch.int32, LIMBS)
        if any(bool(((row < 0) | (row >= PRIME)).any()) for _, row in found):
            raise RefusedUpdateError("a share holds a number beyond its prime")
        return {number: row.numpy().astype(np.uint32) for number, row in found}

    def _read(self, dtype: torch.dtype, width: int) -> list[tuple[int, Tensor]]:
        numbers = _numbers(self.clients)
        _check(self.rows, dtype, len(numbers), width)
        return list(zip(numbers, self.rows.cpu(), strict=True))


@dataclass(frozen=True)
class Letters:
    """Rows of bytes that some clients send others. Each receives its own ones alone.

    Attributes:
        receivers: For whom each row is, int32 of shape (rows,).
        rows: From whom it is, and what it says.
    """

    receivers: Tensor
    rows: Rows

    @staticmethod
    def of(routed: Mapping[int, Mapping[int, bytes]], width: int) -> "Letters":
        """Rows by receiver and sender."""
        receivers = [receiver for receiver, inbox in routed.items() for _ in inbox]
        senders = [sender for inbox in routed.values() for sender in inbox]
        found = [row for inbox in routed.values() for row in inbox.values()]
        return Letters(numbers_of(receivers), Rows(numbers_of(senders), _table(found, width)))

    def to(self, client: int) -> "Letters":
        """What is for a client."""
        count, rows = self.receivers.numel(), self.rows.rows
        _check(self.receivers, _NUMBER, count)
        _check(self.rows.clients, _NUMBER, count)
        _check(rows, rows.dtype, count, *rows.shape[1:])
        place = (self.receivers == client).nonzero().flatten()
        return Letters(self.receivers[place], Rows(self.rows.clients[place], rows[place]))

    def read(self, client: int, width: int) -> dict[int, bytes]:
        """The rows for a client, by sender."""
        return self.to(client).rows.bytes_of(width)


@dataclass(frozen=True)
class Begun:
    """A sum begins.

    Attributes:
        clients: The numbers of those that are asked, int32 of shape (clients,).
    """

    clients: Tensor

    def read(self) -> list[int]:
        """Their numbers."""
        return _numbers(self.clients)


@dataclass(frozen=True)
class Keys:
    """A client's public keys, and who holds shares of its secrets.

    Attributes:
        public: uint8 of shape (64,).
        holders: int32 of shape (holders,), ascending.
        signature: uint8 of shape (96,).
    """

    public: Tensor
    holders: Tensor
    signature: Tensor

    @staticmethod
    def of(offer: Offer) -> "Keys":
        """The message of some keys."""
        return Keys(_row(offer.public), numbers_of(offer.holders), _row(offer.signature))

    def read(self) -> Offer:
        """The keys themselves."""
        _check(self.public, torch.uint8, PUBLIC_BYTES)
        _check(self.signature, torch.uint8, SIGNATURE_BYTES)
        return Offer(_bytes(self.public), _numbers(self.holders), _bytes(self.signature))


@dataclass(frozen=True)
class Neighbours:
    """The keys of clients, for those that have masks in common with them."""

    letters: Letters

    @staticmethod
    def of(known: Mapping[int, Mapping[int, Neighbour]]) -> "Neighbours":
        """The keys, by receiver and owner."""
        routed = {
            receiver: {owner: _written(each) for owner, each in neighbours.items()}
            for receiver, neighbours in known.items()
        }
        return Neighbours(Letters.of(routed, NEIGHBOUR_BYTES))

    def to(self, client: int) -> "Neighbours":
        """What is for a client."""
        return Neighbours(self.letters.to(client))

    def read(self, client: int) -> dict[int, Neighbour]:
        """The neighbours of a client."""
        rows = self.letters.read(client, NEIGHBOUR_BYTES)
        end = 1 + PUBLIC_BYTES
        return {n: Neighbour(row[1:end], row[end:], row[0] == 1) for n, row in rows.items()}


def _written(each: Neighbour) -> bytes:
    return bytes([each.entrusts]) + each.public + each.signature


@dataclass(frozen=True)
class Mail:
    """What goes with the message of an exchange under masks.

    Attributes:
        boxes: Sealed shares, from those whose holder a client is.
        shared: A byte from each of its own holders that has sent shares to its own ones.
    """

    boxes: Letters
    shared: Letters

    @staticmethod
    def of(boxes: Mapping[int, Mapping[int, bytes]], shared: Mapping[int, Sequence[int]]) -> "Mail":
        """The boxes by receiver and sender, and who has shared by receiver."""
        marks = {receiver: dict.fromkeys(numbers, b"\0") for receiver, numbers in shared.items()}
        return Mail(Letters.of(boxes, BOX_BYTES), Letters.of(marks, 1))

    def to(self, client: int) -> "Mail":
        """What is for a client."""
        return Mail(self.boxes.to(client), self.shared.to(client))

    def read(self, client: int) -> tuple[dict[int, bytes], list[int]]:
        """The boxes for a client by sender, and its holders that have shared."""
        return self.boxes.read(client, BOX_BYTES), [*self.shared.read(client, 1)]


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
        tags: What it tells those with which it has masks in common.
    """

    words: Tensor
    tags: Rows

    @staticmethod
    def of(words: Words, tags: Mapping[int, bytes]) -> "Masked":
        """The message of masked numbers."""
        signed = torch.from_numpy(words.view(np.dtype(f"<i{words.itemsize}")))
        return Masked(signed, Rows.of(tags, TAG_BYTES))

    def read(self, form: FixedPoint, numbers: int) -> tuple[Words, dict[int, bytes]]:
        """The masked numbers and the tags."""
        _check(self.words, torch.int32 if form.bits == 32 else torch.int64, numbers)
        return self.words.cpu().numpy().view(form.words), self.tags.bytes_of(TAG_BYTES)


@dataclass(frozen=True)
class Shown:
    """A client's shares of the seeds of some clients, and of the private keys of others."""

    seeds: Rows
    keys: Rows

    @staticmethod
    def of(shown: Revealed) -> "Shown":
        """The message of some shares."""
        return Shown(Rows.of_shares(shown.seeds), Rows.of_shares(shown.keys))

    def read(self) -> Revealed:
        """The shares by client."""
        return Revealed(self.seeds.shares(), self.keys.shares())


KEYS = Exchange("secure sum, keys", Begun, Keys)
SHARES = Exchange("secure sum, shares", Neighbours, Rows)
AGREEMENT = Exchange("secure sum, agreement", Letters, Rows)
UNMASKING = Exchange("secure sum, unmasking", Letters, Shown)
STAGES = frozenset(stage.name for stage in (KEYS, SHARES, AGREEMENT, UNMASKING))
"""Names of the stages around an exchange, at its place in a round."""


def within_bounds(exchange: AnyExchange) -> Exchange[Any, Bounded]:
    """An exchange that adds up, of whose updates the bounded parts are sent."""
    parts = {"parts": Sum()} if exchange.is_sum else {}
    name = f"{exchange.name} within bounds"
    return Exchange(name, exchange.message, Bounded, parts, uses_memory=exchange.uses_memory)


def under_masks(exchange: AnyExchange) -> Exchange[Any, Masked]:
    """An exchange that adds up, whose updates come under masks; its message brings the boxes."""
    name, message = f"{exchange.name} under masks", _with_mail(exchange.message)
    return Exchange(name, message, Masked, uses_memory=exchange.uses_memory)


def digest_of(exchange: AnyExchange, message: object) -> bytes:
    """32 bytes that stand for an exchange and its message, tensor by tensor."""
    found = hashlib.sha256(exchange.name.encode())
    for name, tensor in sorted(pack(message).items()):
        found.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.digest()


_WITH_MAIL: dict[type[Any], type[Any]] = {}
"""One type for each type of message."""


def _with_mail(message: type[Any]) -> type[Any]:
    """The type of a message with all boxes."""
    if message not in _WITH_MAIL:
        fields = [("message", message), ("mail", Mail)]
        name = f"{message.__name__}WithMail"
        made = dataclasses.make_dataclass(name, fields, bases=(_Posted,), frozen=True)
        _WITH_MAIL[message] = made
    return _WITH_MAIL[message]


class _Posted:
    """A message that brings mail."""

    mail: Mail

    def to(self, client: int) -> Any:
        """The message with the mail for a client."""
        return dataclasses.replace(cast(Any, self), mail=self.mail.to(client))


def numbers_of(clients: Iterable[int]) -> Tensor:
    """Numbers of clients as they travel."""
    return torch.tensor([*clients], dtype=_NUMBER)


def _table(rows: Collection[bytes], width: int) -> Tensor:
    return _row(b"".join(rows)).view(len(rows), width)


def _row(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(content), np.uint8))


def _bytes(row: Tensor) -> bytes:
    return row.cpu().numpy().tobytes()


def _check(tensor: Tensor, dtype: torch.dtype, *shape: int) -> None:
    if tensor.dtype != dtype or tensor.shape != shape:
        raise RefusedUpdateError(
            f"there is {tensor.dtype} {tuple(tensor.shape)}, expected {dtype} {shape}"
        )


def _numbers(clients: Tensor) -> list[int]:
    _check(clients, _NUMBER, clients.numel())
    if clients.numel() > _MOST_CLIENTS:
        raise RefusedUpdateError(f"it names {clients.numel()} clients, over {_MOST_CLIENTS}")
    numbers: list[int] = clients.tolist()
    if len(set(numbers)) < len(numbers) or min(numbers, default=0) < 0:
        raise RefusedUpdateError("a client is there twice, or has a number below 0")
    return numbers
