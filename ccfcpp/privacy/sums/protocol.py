"""Secure sums: a server learns the sum of clients' vectors, and no vector.

Source: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning* (CCS
2017), the protocol of Figure 4 against a curious server, without its signatures and its round of
consistency checks, which are against a hostile one. Its stages, each of which a client may miss:

1. *keys*: a client sends two fresh public keys, c_u for sealing and s_u for masks.
2. *shares*: it draws a seed b_u, and sends every other client shares of b_u and of the private s_u.
3. *masked*: it sends y_u = x_u + PRG(b_u) + Σ_{u<v} PRG(s_uv) − Σ_{u>v} PRG(s_uv), v over those
   that have sent shares; s_uv is what u and v agree on by their keys.
4. *unmasking*: it sends, of each client whose y has come, its share of b; of each that sent shares
   and no y, its share of the private s. Never both of one client.

With t shares each, the server takes off PRG(b_u) of those whose y it has, and the masks that those
who are gone have left in them. With fewer than t answers at any stage there is no sum, and what
the server has is uniformly random to it.

All keys and seeds are fresh for every sum, and from the operating system's source: a seed of the
run must not give them.
"""

import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words
from ccfcpp.privacy.sums.masks import KEY_BYTES, TAG_BYTES, KeyPair, opened_from, sealed_for, stream
from ccfcpp.privacy.sums.shares import Share, joined, split

LIMBS = KEY_BYTES // 2
"""Numbers in a share."""
_SHARE = np.dtype("<u4")
BOX_BYTES = 2 * LIMBS * _SHARE.itemsize + TAG_BYTES
"""Bytes of what a client seals for another: two shares."""
PUBLIC_BYTES = 2 * KEY_BYTES
"""Bytes of a client's public keys: c_u for sealing, and s_u for masks."""


class BelowThresholdError(RefusedUpdateError):
    """Too few clients are left for a secure sum; nothing of it can be known."""


@dataclass(frozen=True)
class Terms:
    """What server and clients know of a sum before it begins.

    Attributes:
        purpose: Names this sum; nothing made for another one fits.
        threshold: t: how many clients must be there in every stage, 2 at least.
        form: How numbers travel.
        asked: How many clients were asked; no number may be too large for a sum of so many.
    """

    purpose: bytes
    threshold: int
    form: FixedPoint
    asked: int

    def __post_init__(self) -> None:
        if self.threshold < 2:
            raise ValueError(f"a sum of {self.threshold} clients hides nothing")

    def check(self, there: int, stage: str) -> None:
        """Raise ``BelowThresholdError`` where fewer clients than the threshold are there."""
        if there < self.threshold:
            raise BelowThresholdError(
                f"secure sum: {there} clients at the stage of {stage}, and it needs "
                f"{self.threshold} (privacy.threshold)"
            )


class Revealed(NamedTuple):
    """What a client sends in the last stage.

    Attributes:
        seeds: Its shares of b, by the client whose y has come.
        keys: Its shares of the private s, by the client that is gone.
    """

    seeds: Mapping[int, Share]
    keys: Mapping[int, Share]


class Participant:
    """A client's part in one sum. Each stage comes once, and in its turn; a failure ends the part.

    Two vectors under the same masks would tell the server their difference. A stage raises
    ``RefusedUpdateError`` out of its turn, where too few clients are there, and where what the
    server gives is not sound.
    """

    def __init__(self, number: int, terms: Terms) -> None:
        self.number = number
        self.terms = terms
        self._sealing, self._masks = KeyPair.new(), KeyPair.new()
        self._seed = secrets.token_bytes(KEY_BYTES)
        self._roster: Mapping[int, bytes] = {}
        self._seals: dict[int, bytes] = {}
        self._held: dict[int, tuple[Share, Share]] = {}
        self._turn = "shares"
        self._others: Collection[int] | None = None

    def keys(self) -> bytes:
        """Stage 1: c_u and s_u."""
        return self._sealing.public + self._masks.public

    def shares(self, roster: Mapping[int, bytes]) -> dict[int, bytes]:
        """Stage 2: a sealed box for each other client, from the keys of all that are there."""
        self._enter("shares")
        self.terms.check(len(roster), "keys")
        every = [key for keys in roster.values() for key in (_sealing(keys), _masks(keys))]
        if len(set(every)) < len(every) or roster.get(self.number) != self.keys():
            raise RefusedUpdateError("the server's list of keys is not sound")
        self._roster = roster
        threshold = self.terms.threshold
        seed = split(self._seed, len(roster), threshold)
        key = split(self._masks.private, len(roster), threshold)
        boxes = {}
        for place, other in enumerate(sorted(roster)):
            if other == self.number:
                self._held[other] = seed[place], key[place]
                continue
            content = np.concatenate([seed[place], key[place]]).astype(_SHARE).tobytes()
            seal = self.seal_with(other)
            boxes[other] = sealed_for(seal, self.number, content, self.terms.purpose)
        self._turn = "masked vector"
        return boxes

    def receive(self, boxes: Mapping[int, bytes]) -> None:
        """Stage 3, before there is a vector: take what the others have sealed."""
        self._enter("masked vector")
        self.terms.check(len(boxes) + 1, "shares")
        if self.number in boxes or not boxes.keys() <= self._roster.keys():
            raise RefusedUpdateError("shares of an unknown sender")
        for sender, box in boxes.items():
            seal = self.seal_with(sender)
            both = np.frombuffer(opened_from(seal, sender, box, self.terms.purpose), _SHARE)
            self._held[sender] = both[:LIMBS], both[LIMBS:]
        self._others = boxes.keys()

    def masked(self, vector: Words) -> Words:
        """Stage 3: the vector x_u, which is left as it is, under its masks."""
        if self._others is None:
            raise RefusedUpdateError("secure sum: it has no masks for a vector, or no more")
        others, self._others = self._others, None
        total = vector + stream(self._seed, len(vector), self.terms.form)
        for other in others:
            _add_mask(total, self._masks, self.number, other, self._roster[other], self.terms)
        self._turn = "unmasking"
        return total

    def revealed(self, arrived: Iterable[int]) -> Revealed:
        """Stage 4: shares that take the masks off the sum of those whose vectors have arrived."""
        self._enter("unmasking")
        there = set(arrived)
        self.terms.check(len(there), "masked vectors")
        if self.number not in there or not there <= self._held.keys():
            raise RefusedUpdateError("shares are revealed for those that took part")
        gone = self._held.keys() - there
        return Revealed(
            {number: self._held[number][0] for number in sorted(there)},
            {number: self._held[number][1] for number in sorted(gone)},
        )

    def _enter(self, stage: str) -> None:
        """Begin a stage. No other one follows where it does not come to its end."""
        if self._turn != stage:
            raise RefusedUpdateError(f"secure sum: {stage} was asked for twice, or out of turn")
        self._turn = "over"

    def seal_with(self, other: int) -> bytes:
        """The key of boxes between two clients, which both have agreed on."""
        if other not in self._seals:
            public = _sealing(self._roster[other])
            self._seals[other] = self._sealing.agreed(public, b"seal " + self.terms.purpose)
        return self._seals[other]


def _sealing(keys: bytes) -> bytes:
    return keys[:KEY_BYTES]


def _masks(keys: bytes) -> bytes:
    return keys[KEY_BYTES:]


def _add_mask(
    total: Words, own: KeyPair, number: int, other: int, keys: bytes, terms: Terms
) -> None:
    """Put the mask that two clients have in common on a vector, with the sign of the first."""
    seed = own.agreed(_masks(keys), b"mask " + terms.purpose)
    mask = stream(seed, len(total), terms.form)
    if number < other:
        total += mask
    else:
        total -= mask


class Collector:
    """The server's part in one sum. What it is given is all that it sees.

    Its stages raise ``BelowThresholdError`` where too few clients are left, and
    ``RefusedUpdateError`` where a vector or the shares cannot be used.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._roster: Mapping[int, bytes] = {}
        self._sharers: set[int] = set()
        self._arrived: set[int] = set()
        self._total: Words | None = None

    def roster(self, keys: Mapping[int, bytes]) -> Mapping[int, bytes]:
        """After stage 1: what goes to all that are there."""
        self.terms.check(len(keys), "keys")
        self._roster = keys
        return keys

    def routed(self, boxes: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """After stage 2: what goes to each of those that are there, by receiver and sender."""
        self.terms.check(len(boxes), "shares")
        self._sharers = set(boxes)
        return {
            receiver: {
                sender: sent[receiver] for sender, sent in boxes.items() if sender != receiver
            }
            for receiver in boxes
        }

    def take(self, number: int, masked: Words) -> None:
        """In stage 3: count a vector in; nothing is kept but the total."""
        if number not in self._sharers or number in self._arrived:
            raise RefusedUpdateError("its masked vector was not asked for")
        if self._total is None:
            self._total = np.zeros(len(masked), self.terms.form.words)
        if masked.dtype != self._total.dtype or masked.shape != self._total.shape:
            raise RefusedUpdateError("its masked vector has another shape")
        self._total += masked
        self._arrived.add(number)

    def arrived(self) -> list[int]:
        """After stage 3: whose vectors have come, which all of them are told."""
        self.terms.check(len(self._arrived), "masked vectors")
        return sorted(self._arrived)

    def total(self, revealed: Mapping[int, Revealed]) -> Words:
        """After stage 4: the sum of the vectors that have come."""
        self.terms.check(len(revealed), "unmasking")
        assert self._total is not None
        total = self._total.copy()
        for number in self._arrived:
            seed = self._joined({n: answer.seeds.get(number) for n, answer in revealed.items()})
            total -= stream(seed, len(total), self.terms.form)
        for gone in self._sharers - self._arrived:
            key = self._joined({n: answer.keys.get(gone) for n, answer in revealed.items()})
            left = KeyPair(key)
            if left.public != _masks(self._roster[gone]):
                raise RefusedUpdateError(f"the shares of client {gone}'s key do not give it")
            for number in self._arrived:
                # What the one who is gone would have put on cancels what the other has.
                _add_mask(total, left, gone, number, self._roster[number], self.terms)
        return total

    def _joined(self, shares: Mapping[int, Share | None]) -> bytes:
        places = {number: place for place, number in enumerate(sorted(self._roster))}
        there = {places[number]: share for number, share in shares.items() if share is not None}
        self.terms.check(len(there), "unmasking")
        try:
            return joined(there, self.terms.threshold)
        except ValueError as error:
            raise RefusedUpdateError(f"secure sum: {error}") from error
