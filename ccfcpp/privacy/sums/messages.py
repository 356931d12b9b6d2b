"""Messages of a secure sum, and of a sum of clipped updates that the server sees.

Received messages may have any shapes and dtypes: they are checked when they are read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.files import content_hash
from ccfcpp.engine.exchange import AnyExchange, Exchange, Message, RefusedUpdateError
from ccfcpp.engine.payload import pack, parametrize
from ccfcpp.engine.update_format import Sum
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words
from ccfcpp.privacy.sums.identity import SIGNATURE_BYTES
from ccfcpp.privacy.sums.masks import TAG_BYTES
from ccfcpp.privacy.sums.protocol import (
    BOX_BYTES,
    PUBLIC_BYTES,
    SHARE_BYTES,
    Neighbour,
    Offer,
    Revealed,
)
from ccfcpp.privacy.sums.secret_sharing import is_share

EXCHANGES_OF_A_SUM = 5
"""Number of exchanges of a secure sum: keys, shares, the exchange itself, agreement, unmasking."""
NEIGHBOUR_BYTES = 1 + PUBLIC_BYTES + SIGNATURE_BYTES
"""Length of a packed ``Neighbour``."""
_NUMBER = torch.int32
"""dtype of clients' numbers."""
_MOST_CLIENTS = 10**5
"""Largest number of clients in a message, so that no message fills the memory."""


@dataclass(frozen=True)
class ClientRows:
    """Rows of bytes of equal length, one for each client.

    Attributes:
        clients: Their numbers, int32 of shape (clients,).
        rows: uint8 of shape (clients, width).
    """

    clients: Tensor
    rows: Tensor

    @staticmethod
    def of(rows: Mapping[int, bytes], width: int) -> "ClientRows":
        """Pack rows of ``width`` bytes, given by client."""
        return ClientRows(numbers_of(rows), _row(b"".join(rows.values())).view(len(rows), width))

    def read(self, width: int) -> dict[int, bytes]:
        """Return the rows by client; refuse them if they are not ``width`` bytes long."""
        numbers = _numbers(self.clients)
        _check(self.rows, torch.uint8, len(numbers), width)
        return {n: _bytes(row) for n, row in zip(numbers, self.rows.cpu(), strict=True)}


@dataclass(frozen=True)
class Letters:
    """Rows of bytes from clients to other clients; each client receives only its own.

    Attributes:
        receivers: Receiver of each row, int32 of shape (rows,).
        rows: Sender and content of each row.
    """

    receivers: Tensor
    rows: ClientRows

    @staticmethod
    def of(routed: Mapping[int, Mapping[int, bytes]], width: int) -> "Letters":
        """Pack rows of ``width`` bytes, given by receiver and then by sender."""
        each = [(to, sender, row) for to, inbox in routed.items() for sender, row in inbox.items()]
        table = _row(b"".join(row for *_, row in each)).view(len(each), width)
        senders = numbers_of(sender for _, sender, _ in each)
        return Letters(numbers_of(to for to, *_ in each), ClientRows(senders, table))

    def to(self, client: int) -> "Letters":
        """Return only the rows that are addressed to a client."""
        count, rows = self.receivers.numel(), self.rows.rows
        _check(self.receivers, _NUMBER, count)
        _check(self.rows.clients, _NUMBER, count)
        _check(rows, rows.dtype, count, *rows.shape[1:])
        place = (self.receivers == client).nonzero().flatten()
        return Letters(self.receivers[place], ClientRows(self.rows.clients[place], rows[place]))

    def read(self, client: int, width: int) -> dict[int, bytes]:
        """Return the rows of ``width`` bytes that are addressed to a client, by sender."""
        return self.to(client).rows.read(width)


@dataclass(frozen=True)
class Begun:
    """First message of a secure sum, to all clients that are asked.

    Attributes:
        clients: Numbers of the clients that are asked, int32 of shape (clients,).
    """

    clients: Tensor

    def read(self) -> list[int]:
        """Return the numbers of the clients that are asked."""
        return _numbers(self.clients)


@dataclass(frozen=True)
class Keys:
    """A client's public keys, and the clients that will hold shares of its secrets.

    Attributes:
        public: The two public keys, uint8 of shape (64,).
        holders: Numbers of these clients, int32 of shape (holders,), ascending.
        signature: The client's signature of its keys, uint8 of shape (96,).
    """

    public: Tensor
    holders: Tensor
    signature: Tensor

    @staticmethod
    def of(offer: Offer) -> "Keys":
        """Pack a client's public keys, holders and signature."""
        return Keys(_row(offer.public), numbers_of(offer.holders), _row(offer.signature))

    def read(self) -> Offer:
        """Return the client's public keys, holders and signature."""
        _check(self.public, torch.uint8, PUBLIC_BYTES)
        _check(self.signature, torch.uint8, SIGNATURE_BYTES)
        return Offer(_bytes(self.public), _numbers(self.holders), _bytes(self.signature))


def letters_of_neighbours(known: Mapping[int, Mapping[int, Neighbour]]) -> Letters:
    """Pack, for each client, the keys of its neighbours, with which it shares masks."""
    routed = {
        receiver: {n: bytes([e.entrusts]) + e.public + e.signature for n, e in owners.items()}
        for receiver, owners in known.items()
    }
    return Letters.of(routed, NEIGHBOUR_BYTES)


def neighbours_in(letters: Letters, client: int) -> dict[int, Neighbour]:
    """Unpack the keys of the neighbours of a client, by the neighbours' numbers."""
    rows, end = letters.read(client, NEIGHBOUR_BYTES), 1 + PUBLIC_BYTES
    return {n: Neighbour(row[1:end], row[end:], row[0] == 1) for n, row in rows.items()}


@dataclass(frozen=True)
class Mail:
    """Encrypted key shares, in boxes, that are sent along with the message of a masked exchange.

    Attributes:
        boxes: Encrypted shares for the receiver, from the clients that chose it as a holder.
        shared: A zero byte from each holder of the receiver's shares that has sent its own shares.
    """

    boxes: Letters
    shared: Letters

    @staticmethod
    def of(boxes: Mapping[int, Mapping[int, bytes]], shared: Mapping[int, Sequence[int]]) -> "Mail":
        """Pack boxes, by receiver and sender, and each receiver's holders that have sent shares."""
        marks = {receiver: dict.fromkeys(numbers, b"\0") for receiver, numbers in shared.items()}
        return Mail(Letters.of(boxes, BOX_BYTES), Letters.of(marks, 1))

    def to(self, client: int) -> "Mail":
        """Return the part of the mail (encrypted key shares) that is addressed to one client."""
        return Mail(self.boxes.to(client), self.shared.to(client))

    def read(self, client: int) -> tuple[dict[int, bytes], list[int]]:
        """Return the boxes for a client, by sender, and its holders that have sent shares."""
        return self.boxes.read(client, BOX_BYTES), [*self.shared.read(client, 1)]


@dataclass(frozen=True)
class WithMail(Generic[Message]):
    """Message of an exchange, with encrypted key shares (mail) for the clients."""

    message: Message
    mail: Mail

    def to(self, client: int) -> "WithMail[Message]":
        """Return the message with the mail (encrypted key shares) for one client only."""
        return replace(self, mail=self.mail.to(client))


@dataclass(frozen=True)
class BoundedParts:
    """Clipped parts (tensors) of a client's update, to be summed over clients: float64 by name."""

    parts: dict[str, Tensor]


@dataclass(frozen=True)
class MaskedParts:
    """Masked parts (tensors) of a client's update, to be summed over clients.

    Attributes:
        words: All numbers in the order of their parts' names, as masked fixed-point numbers: int32
            or int64 of shape (numbers,).
        tags: A tag (authentication code) for each client with which the client shares masks.
    """

    words: Tensor
    tags: ClientRows

    @staticmethod
    def of(words: Words, tags: Mapping[int, bytes]) -> "MaskedParts":
        """Pack masked numbers, and tags (authentication codes) by receiving client."""
        signed = torch.from_numpy(words.view(np.dtype(f"<i{words.itemsize}")))
        return MaskedParts(signed, ClientRows.of(tags, TAG_BYTES))

    def read(self, form: FixedPoint, numbers: int) -> tuple[Words, dict[int, bytes]]:
        """Return the masked numbers, exactly ``numbers``, and the tags by receiving client."""
        _check(self.words, torch.int32 if form.bits == 32 else torch.int64, numbers)
        return self.words.cpu().numpy().view(form.words), self.tags.read(TAG_BYTES)


@dataclass(frozen=True)
class ShownShares:
    """A client's shares of the mask seeds of some clients, and of the private keys of others."""

    seeds: ClientRows
    keys: ClientRows

    @staticmethod
    def of(shown: Revealed) -> "ShownShares":
        """Pack the shares that a client reveals."""
        return ShownShares(*(ClientRows.of(shares, SHARE_BYTES) for shares in shown))

    def read(self) -> Revealed:
        """Return the revealed shares of seeds and of keys, by client; raise if one is invalid."""
        revealed = Revealed(self.seeds.read(SHARE_BYTES), self.keys.read(SHARE_BYTES))
        if not all(is_share(share) for of in revealed for share in of.values()):
            raise RefusedUpdateError("a share holds a number beyond its prime")
        return revealed


KEYS = Exchange("secure sum, keys", Begun, Keys)
SHARES = Exchange("secure sum, shares", Letters, ClientRows)
AGREEMENT = Exchange("secure sum, agreement", Letters, ClientRows)
UNMASKING = Exchange("secure sum, unmasking", Letters, ShownShares)
STAGES = frozenset(stage.name for stage in (KEYS, SHARES, AGREEMENT, UNMASKING))
"""Names of the exchanges of a secure sum before and after the exchange itself."""


def within_bounds(exchange: AnyExchange) -> Exchange[Any, BoundedParts]:
    """Return the variant of an exchange whose updates are clipped parts, unmasked."""
    parts = {"parts": Sum()} if exchange.is_sum else {}
    name, memory = f"{exchange.name} within bounds", exchange.uses_memory
    return Exchange(name, exchange.message, BoundedParts, parts, uses_memory=memory)


def under_masks(exchange: AnyExchange) -> Exchange[WithMail[Any], MaskedParts]:
    """Return the masked variant of an exchange; its message has key shares (``Mail``), too."""
    name, memory = f"{exchange.name} under masks", exchange.uses_memory
    return Exchange(name, parametrize(WithMail, exchange.message), MaskedParts, uses_memory=memory)


def digest_of(exchange: AnyExchange, message: object) -> bytes:
    """Compute a digest of an exchange's name and message, 32 bytes."""
    return bytes.fromhex(content_hash(exchange.name, pack(message)))


def numbers_of(clients: Iterable[int]) -> Tensor:
    """Pack clients' numbers to an int32 tensor."""
    return torch.tensor([*clients], dtype=_NUMBER)


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
