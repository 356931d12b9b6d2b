"""Protocol of secure sums: a server learns the sum of clients' vectors, and no single vector.

Sources: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*
(CCS 2017), Figure 4, against a server that lies; and Bell et al., *Secure Single-Server Aggregation
with (Poly)Logarithmic Overhead* (CCS 2020), for shares and masks between some of the clients only.
A client may miss each of the stages:

1. *keys*: client u draws k − 1 others at random, which with itself are the *holders* of its
   secrets. It sends their numbers and two fresh public keys, c_u for sealing and s_u for masks. It
   signs these keys together with the terms of the sum and the numbers of all that are asked. Its
   *neighbours* are its holders, and those whose holder it is.
2. *shares*: from its neighbours' keys, whose signatures it checks, it draws a seed b_u, and sends
   each of its holders shares of b_u and of the private s_u.
3. *masked*: it sends y_u = x_u + PRG(b_u) + Σ_{u<v} PRG(s_uv) − Σ_{u>v} PRG(s_uv), v over the
   neighbours that have sent shares; s_uv is what u and v agree on by their keys. For each v it adds
   a tag, by which v knows that y_u has their common mask.
4. *agreement*: it is told which of those whose holder it is have sent a vector, and sees that by
   their tags. It sends each of them a tag: "you are in the sum".
5. *unmasking*: with such tags of enough of its own holders it knows that it is in the sum. Then it
   sends its share of b of those that are in the sum, and of the private s of those that are not.

With a quorum of shares each, the server takes off PRG(b_u) of those whose y it has, and the masks
that those who are gone have left in them.

**What a dishonest server can learn**, if at most c of each honest client's k holders collude with
it and 2 · quorum > k + c. An honest holder shows one kind of share of u. So b_u and s_u cannot
both become known. While b_u is unknown, y_u is uniform. If it is known, at least quorum − c honest
holders v, u perhaps among them, have shown it, and each other one (a) has a tag of u that s_uv is
in y_u, and (b) has tags of a quorum of its own holders that v is in the sum, so that s_v stays
unknown. Then s_uv is unknown, and x_u appears in sums with all of these x_v alone: of quorum − c
honest clients or more. The argument does not trust what the server says: signatures and tags
show which clients take part. With all clients as holders quorum is the threshold;
otherwise c is bounded with a probability, since u draws its holders itself (``identity.Floor``).

**One message for all.** A server that gives a client another message than the others could make
their vectors vanish (Pasquini et al., *Eluding Secure Aggregation in Federated Learning via Model
Inconsistency*, CCS 2022). So s_uv also depends on a digest of the message: with different ones
masks stay in the sum.

**Two sums of one task.** Their difference may be one vector. So a client that has shown shares goes
through a second sum for the same task only with the same clients, as far as it sees them: before it
sends its vector, those whose holder it is must be those that were in the first sum; and again
before it shows shares. Suppose that x_w is in the first sum alone. Then at least quorum − c honest
holders have shown b_w. If w sends them no shares in the second sum, their vectors are not in it
either; else they refuse to show any, and neither b_w nor s_w becomes known. If x_w is in the second
sum alone, its holders that have shown shares in the first one refuse; with all clients as holders
fewer than a quorum are left.

All keys, seeds and choices are fresh for every sum, and from the operating system's source: a seed
of the run must not give them.
"""

import dataclasses
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ccfcpp.core.files import content_hash
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.privacy.sums.agreement import Terms
from ccfcpp.privacy.sums.fixed_point import Words
from ccfcpp.privacy.sums.identity import Before, Identity, Unsigned
from ccfcpp.privacy.sums.masks import KEY_BYTES, TAG_BYTES, KeyPair, open_sealed, seal, stream
from ccfcpp.privacy.sums.secret_sharing import SHARE_PER_BYTE, join_shares, split_secret

SHARE_BYTES = SHARE_PER_BYTE * KEY_BYTES
BOX_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""Length of a box, which a client seals for another: two shares and a tag."""
PUBLIC_BYTES = 2 * KEY_BYTES
"""Length of a client's public keys: c_u for sealing, and s_u for masks."""
_SHARES, _MASKED, _INCLUDED = range(3)
"""Types of sealed content: two shares; "my vector has our mask"; "you are in the sum"."""


class Offer(NamedTuple):
    """A client's message in the first stage: its public keys and chosen holders.

    Attributes:
        public: The client's public keys for encryption (c_u) and for masks (s_u), 64 bytes.
        holders: Numbers of the clients that hold shares of its secrets, ascending, including its
            own.
        signature: The client's signature of the terms, its number and its keys.
    """

    public: bytes
    holders: Sequence[int]
    signature: bytes


class Neighbour(NamedTuple):
    """Public keys of another client with which a client shares a mask.

    Attributes:
        public: The neighbour's public keys for encryption and for masks, 64 bytes.
        signature: The neighbour's signature of its keys.
        entrusts: Whether the neighbour has chosen the client as a holder of its shares.
    """

    public: bytes
    signature: bytes
    entrusts: bool


class Revealed(NamedTuple):
    """A client's message in the last stage: shares that remove masks.

    Attributes:
        seeds: Its shares of the seeds b of clients in the sum, by client.
        keys: Its shares of the private keys s of clients that dropped out, by client.
    """

    seeds: Mapping[int, bytes]
    keys: Mapping[int, bytes]


Tags = dict[int, bytes]
"""Authentication tags of 16 bytes, by the number of the other client."""


class Participant:
    """Client side of the protocol for one secure sum: five stages, each run once and in order.

    Two vectors under the same masks would reveal their difference to the server. A stage raises
    ``RefusedUpdateError`` out of order, if too few clients are left, and if the server's
    message is not sound.

    Args:
        number: The client's number.
        terms: Terms of the sum.
        asked: Numbers of all clients that are asked.
        identity: Signs this client's keys, and checks the others' signatures.
        before: Earlier sum for the same task, for which this client has revealed shares; None if
            there is none.
    """

    def __init__(
        self,
        number: int,
        terms: Terms,
        asked: Collection[int],
        identity: Identity = Unsigned(),  # noqa: B008 - it holds nothing
        before: Before | None = None,
    ) -> None:
        self.number = number
        self.terms = terms
        self.identity = identity
        self.before = before
        self._asked = frozenset(asked)
        self._terms_digest = _digest(terms, self._asked)
        self._check_same("asked", self._asked)
        others = sorted(self._asked - {number})
        drawn = secrets.SystemRandom().sample(others, terms.holders - 1)
        self.holders = before.holders if before else sorted([number, *drawn])
        self._sealing, self._masks = KeyPair.new(), KeyPair.new()
        self._seed = secrets.token_bytes(KEY_BYTES)
        self._known: Mapping[int, Neighbour] = {}
        self._seals: dict[int, bytes] = {}
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._mask_partners: Collection[int] = ()
        self._included: set[int] = set()
        self._next_stage = "shares"
        self._has_masks = False

    def keys(self) -> Offer:
        """Return this client's signed public keys, and the holders of its shares (stage 1)."""
        public = self._public
        signature = self.identity.signed(self._signed_content(self.number, public))
        return Offer(public, self.holders, signature)

    def shares(self, neighbours: Mapping[int, Neighbour]) -> dict[int, bytes]:
        """Return an encrypted box of key shares for each other holder of such shares (stage 2).

        Args:
            neighbours: Public keys of the neighbours, by number.
        """
        self._enter("shares")
        self._check_keys(neighbours)
        there = [n for n in self.holders if n == self.number or n in neighbours]
        self.terms.check_holders(len(there), "keys")
        self._known = neighbours
        quorum = self.terms.quorum
        seeds, keys = (
            split_secret(secret, len(self.holders), quorum)
            for secret in (self._seed, self._masks.private)
        )
        boxes = {}
        for holder, seed, key in zip(self.holders, seeds, keys, strict=True):
            if holder == self.number:
                self._held[holder] = seed, key
            elif holder in neighbours:
                boxes[holder] = self._seal_box(holder, _SHARES, seed + key)
        self._next_stage = "masked vector"
        return boxes

    def receive(self, boxes: Mapping[int, bytes], shared: Collection[int]) -> None:
        """Decrypt and store the shares that others have sent in boxes (start of stage 3).

        Args:
            boxes: Boxes by sender.
            shared: This client's holders that have sent shares to their own holders.
        """
        self._enter("masked vector")
        if not all(n in self._known and self._known[n].entrusts for n in boxes):
            raise RefusedUpdateError("shares of an unknown sender")
        own = {n for n in shared if n in self._known and n in self.holders}
        if len(own) < len(shared):
            raise RefusedUpdateError("shares of clients that hold none of its own")
        self._mask_partners = own | boxes.keys()
        there = sum(holder in self._mask_partners for holder in self.holders)
        self.terms.check_holders(there + 1, "shares")
        self._check_same("included", {self.number, *boxes})
        for sender, box in boxes.items():
            both = self._open_box(sender, _SHARES, box)
            self._held[sender] = both[:SHARE_BYTES], both[SHARE_BYTES:]
        self._has_masks = True

    def masked(self, vector: Words, about: bytes = b"") -> tuple[Words, Tags]:
        """Return this client's vector with masks added, and tags (stage 3).

        A tag proves to a client with a common mask that the mask is in the vector.

        Args:
            vector: The vector without masks, which is not changed.
            about: Digest of the message that the vector answers.
        """
        if not self._has_masks:
            raise RefusedUpdateError("secure sum: it has no masks for a vector, or no more")
        self._has_masks = False
        total = vector + stream(self._seed, len(vector), self.terms.form)
        for other in self._mask_partners:
            public = self._known[other].public
            _add_mask(total, self._masks, self.number, other, public, self.terms, about)
        self._next_stage = "agreement"
        return total, {other: self._seal_box(other, _MASKED) for other in self._mask_partners}

    def agreed(self, arrived: Mapping[int, bytes]) -> Tags:
        """Return tags (authentication codes) that tell clients that they are in the sum (stage 4).

        Args:
            arrived: Tags of stage 3, by sender: clients whose shares this one holds.
        """
        self._enter("agreement")
        if not arrived.keys() <= self._held.keys():
            raise RefusedUpdateError("vectors of clients whose shares it does not hold")
        others = [n for n, tag in arrived.items() if self._is_tag_valid(n, tag, _MASKED)]
        self._included = {self.number, *others}
        self._check_same("included", self._included)
        self._next_stage = "unmasking"
        return {other: self._seal_box(other, _INCLUDED) for other in others}

    def revealed(self, included: Mapping[int, bytes]) -> Revealed:
        """Return the shares that remove the masks from the sum (stage 5).

        Args:
            included: Tags of stage 4, by sender: holders of this client's shares.
        """
        self._enter("unmasking")
        own = set(self.holders) & set(self._mask_partners)
        sure = [
            n for n, tag in included.items() if n in own and self._is_tag_valid(n, tag, _INCLUDED)
        ]
        self.terms.check_holders(len(sure) + 1, "unmasking")
        gone = self._held.keys() - self._included
        return Revealed(
            {number: self._held[number][0] for number in sorted(self._included)},
            {number: self._held[number][1] for number in sorted(gone)},
        )

    @property
    def shown(self) -> Before:
        """Record of this secure sum, to be stored once the client has revealed shares."""
        return Before(self._asked, self.holders, self._included)

    @property
    def _public(self) -> bytes:
        return self._sealing.public + self._masks.public

    def _check_keys(self, neighbours: Mapping[int, Neighbour]) -> None:
        keys = [
            key
            for public in [self._public, *(each.public for each in neighbours.values())]
            for key in (_sealing(public), _masks(public))
        ]
        known = neighbours.keys() <= self._asked - {self.number}
        chosen = all(each.entrusts or n in self.holders for n, each in neighbours.items())
        if not known or not chosen or len(set(keys)) < len(keys):
            raise RefusedUpdateError("the server's list of keys is not sound")
        for number, each in neighbours.items():
            self.identity.check(number, each.signature, self._signed_content(number, each.public))

    def _signed_content(self, number: int, public: bytes) -> bytes:
        """Return the content that a client signs: digest of the terms, its number, public keys."""
        return self._terms_digest + number.to_bytes(8, "big") + public

    def _check_same(self, what: str, clients: Collection[int]) -> None:
        """Refuse a task's second sum if ``clients`` differ from field ``what`` of ``Before``."""
        if self.before is not None and getattr(self.before, what) != clients:
            raise RefusedUpdateError(
                "a second sum for the same task, over other clients: their difference could be the "
                "part of one of them"
            )

    def _enter(self, stage: str) -> None:
        """Start a stage; refuse it out of order. If it fails, no other stage can follow."""
        if self._next_stage != stage:
            raise RefusedUpdateError(f"secure sum: {stage} was asked for twice, or out of turn")
        self._next_stage = "over"

    def _seal_box(self, receiver: int, what: int, content: bytes = b"") -> bytes:
        """Encrypt content from this client for the receiver; ``what`` is the kind of content."""
        return seal(self._box_key(receiver), what, self.number, content, self.terms.purpose)

    def _open_box(self, sender: int, what: int, box: bytes) -> bytes:
        return open_sealed(self._box_key(sender), what, sender, box, self.terms.purpose)

    def _is_tag_valid(self, sender: int, tag: bytes, what: int) -> bool:
        try:
            return self._open_box(sender, what, tag) == b""
        except RefusedUpdateError:
            return False

    def _box_key(self, other: int) -> bytes:
        """Return the key that this client shares with another, for boxes and tags."""
        if other not in self._seals:
            public = _sealing(self._known[other].public)
            self._seals[other] = self._sealing.agreed(public, b"seal " + self.terms.purpose)
        return self._seals[other]


def _digest(terms: Terms, asked: Collection[int]) -> bytes:
    """Compute a digest of the terms of a sum and of the asked clients, 32 bytes."""
    known = dataclasses.asdict(terms) | {"purpose": terms.purpose.hex()}
    return bytes.fromhex(content_hash([known, sorted(asked)]))


def _sealing(keys: bytes) -> bytes:
    return keys[:KEY_BYTES]


def _masks(keys: bytes) -> bytes:
    return keys[KEY_BYTES:]


def _add_mask(
    total: Words, own: KeyPair, number: int, other: int, keys: bytes, terms: Terms, about: bytes
) -> None:
    """Add the common mask of two clients to ``total``, or subtract it if ``number`` > ``other``."""
    seed = own.agreed(_masks(keys), b"mask " + about + terms.purpose)
    mask = stream(seed, len(total), terms.form)
    if number < other:
        total += mask
    else:
        total -= mask


class Collector:
    """Server side of the protocol for one secure sum; it does no input or output.

    Its stages raise ``BelowThresholdError`` if too few clients are left, and
    ``RefusedUpdateError`` if a vector or the shares cannot be used.

    Args:
        terms: Terms of the sum.
        asked: Numbers of all clients that are asked.
        about: Digest of the message that the vectors answer.
    """

    def __init__(self, terms: Terms, asked: Collection[int], about: bytes = b"") -> None:
        self.terms = terms
        self.about = about
        self._asked = frozenset(asked)
        self._keys: set[bytes] = set()
        self._offers: Mapping[int, Offer] = {}
        self._wards: dict[int, list[int]] = {}
        """For each client the other clients whose shares it holds."""
        self._sharers: set[int] = set()
        self._tags: dict[int, Mapping[int, bytes]] = {}
        self._total: Words | None = None

    def check(self, number: int, offer: Offer) -> None:
        """Raise ``RefusedUpdateError`` if a client's keys and holders would make others refuse."""
        drawn = set(offer.holders)
        fits = len(offer.holders) == len(drawn) == self.terms.holders
        if not fits or number not in drawn or not drawn <= self._asked:
            raise RefusedUpdateError("the holders of its shares are not those that were asked")
        keys = {_sealing(offer.public), _masks(offer.public)}
        if len(keys) < 2 or keys & self._keys:
            raise RefusedUpdateError("its keys are not its own")
        for key in keys:
            KeyPair.new().agreed(key, b"")  # raises if the key is invalid
        self._keys |= keys

    def neighbours(self, offers: Mapping[int, Offer]) -> dict[int, dict[int, Neighbour]]:
        """Store the offers; return keys and signatures of each client's neighbours (stage 1)."""
        self.terms.check(len(offers), "keys")
        self._offers = offers
        self._wards = {number: [] for number in offers}
        for number, offer in offers.items():
            for holder in offer.holders:
                if holder != number and holder in offers:
                    self._wards[holder].append(number)
        neighbours: dict[int, dict[int, Neighbour]] = {}
        for number in offers:
            wards = set(self._wards[number])
            neighbours[number] = {
                other: Neighbour(offers[other].public, offers[other].signature, other in wards)
                for other in sorted(wards | self.others(number))
            }
        return neighbours

    def others(self, number: int) -> set[int]:
        """Return the other clients that hold a client's shares and have sent keys."""
        return set(self._offers[number].holders) & self._offers.keys() - {number}

    def route_shares(
        self, boxes: Mapping[int, Mapping[int, bytes]]
    ) -> tuple[dict[int, dict[int, bytes]], dict[int, list[int]]]:
        """Regroup boxes (encrypted shares), given by sender and receiver, by receiver (stage 2).

        Returns:
            Boxes by receiver and sender, and each client's holders that have sent boxes.
        """
        self.terms.check(len(boxes), "shares")
        self._sharers = set(boxes)
        mail = {n: {o: boxes[o][n] for o in self._wards[n] if o in boxes} for n in boxes}
        return mail, {n: sorted(self.others(n) & self._sharers) for n in boxes}

    def take(self, number: int, masked: Words, tags: Mapping[int, bytes]) -> None:
        """Add a client's masked vector to the total, and store its tags for others (stage 3)."""
        if number not in self._sharers or number in self._tags:
            raise RefusedUpdateError("its masked vector was not asked for")
        if self._mask_partners(number) != tags.keys():
            raise RefusedUpdateError("its tags are not for its neighbours")
        if self._total is None:
            self._total = np.zeros(len(masked), self.terms.form.words)
        if masked.dtype != self._total.dtype or masked.shape != self._total.shape:
            raise RefusedUpdateError("its masked vector has another shape")
        self._total += masked
        self._tags[number] = tags

    def arrived(self) -> dict[int, Tags]:
        """Return the tags for each client whose vector has arrived, by sender (after stage 3)."""
        self.terms.check(len(self._tags), "masked vectors")
        return {
            number: {other: self._tags[other][number] for other in self._included_wards(number)}
            for number in sorted(self._tags)
        }

    def included(self, tags: Mapping[int, Mapping[int, bytes]]) -> dict[int, Tags]:
        """Return, for each client that has answered, the tags by which its holders confirm it.

        These are the tags of stage 4, by holder: the client is in the sum.
        """
        self.terms.check(len(tags), "agreement")
        return {
            number: {
                other: tags[other][number]
                for other in self.others(number) & tags.keys()
                if number in tags[other]
            }
            for number in tags
        }

    def total(self, revealed: Mapping[int, Revealed]) -> Words:
        """Remove the masks by the shares that clients have revealed; return the sum (stage 5)."""
        self.terms.check(len(revealed), "unmasking")
        assert self._total is not None
        total = self._total.copy()
        for number in self._tags:
            seed = self._recover_secret(
                number, {n: a.seeds.get(number) for n, a in revealed.items()}
            )
            total -= stream(seed, len(total), self.terms.form)
        for gone in self._sharers - self._tags.keys():
            key = self._recover_secret(gone, {n: a.keys.get(gone) for n, a in revealed.items()})
            left = KeyPair(key)
            if left.public != _masks(self._offers[gone].public):
                raise RefusedUpdateError(f"the shares of client {gone}'s key do not give it")
            for number in self._mask_partners(gone) & self._tags.keys():
                # The mask that the lost client would have added cancels the other's.
                public = self._offers[number].public
                _add_mask(total, left, gone, number, public, self.terms, self.about)
        return total

    def _mask_partners(self, number: int) -> set[int]:
        """Return the numbers of the clients that share masks with client ``number``."""
        return (self.others(number) | set(self._wards[number])) & self._sharers

    def _included_wards(self, number: int) -> list[int]:
        return [other for other in self._wards[number] if other in self._tags]

    def _recover_secret(self, number: int, shares: Mapping[int, bytes | None]) -> bytes:
        places = {holder: place for place, holder in enumerate(self._offers[number].holders)}
        there = {
            places[holder]: share
            for holder, share in shares.items()
            if share is not None and holder in places
        }
        self.terms.check_holders(len(there), f"unmasking client {number}")
        try:
            return join_shares(there, self.terms.quorum)
        except ValueError as error:
            senders = [holder for holder, place in places.items() if place in there]
            raise RefusedUpdateError(
                f"secure sum: the shares of a secret of client {number} do not fit each other; one "
                f"of {', '.join(f'client {sender}' for sender in senders)} has sent a wrong one"
            ) from error
