"""The protocol of secure sums: equality to the plain sum, dropouts, refusals, and what leaks."""

import hmac
import itertools
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.engine.exchange import (
    AbsentClientError,
    RefusedUpdateError,
    Task,
)
from ccfcpp.engine.payload import count_bytes, pack
from ccfcpp.engine.stages import ExchangeRequest, check_reply
from ccfcpp.engine.transport import Reply
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.agreement import BelowThresholdError, Terms, fewest_holders, terms_of
from ccfcpp.privacy.sums.client import Participants
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words
from ccfcpp.privacy.sums.identity import (
    SIGNATURE_BYTES,
    Before,
    Floor,
    Identity,
    Safeguard,
    Unsigned,
)
from ccfcpp.privacy.sums.masks import KeyPair, stream
from ccfcpp.privacy.sums.messages import Begun, Letters
from ccfcpp.privacy.sums.messages import numbers_of as begun_with
from ccfcpp.privacy.sums.protocol import (
    Collector,
    Neighbour,
    Offer,
    Participant,
    Revealed,
    Tags,
)
from ccfcpp.privacy.sums.secret_sharing import join_shares
from tests.support.sums import STAGES, TASK, Loss, Vector, losses, secure_sum

FORMS = [FixedPoint(32, 16), FixedPoint(64, 32)]


def summed(
    vectors: Mapping[int, Tensor],
    form: FixedPoint,
    threshold: int | None = None,
    loses: Loss = lambda stage, client: False,
    holders: int | None = None,
) -> tuple[ExchangeRequest, list[Reply]]:
    """What comes of a secure sum of some vectors, by the client's number."""
    config = PrivacyConfig(
        secure_sums=True,
        threshold=threshold,
        holders=holders,
        bits=form.bits,
        fraction_bits=form.fraction,
    )
    return secure_sum(vectors, config, loses)


def numbers_of(count: int) -> list[int]:
    return [7 * number + 2 for number in range(count)]


def plain_sum(vectors: list[Tensor], form: FixedPoint) -> list[int]:
    """The sum of the rounded numbers, as Python's integers."""
    rows = [[round(float(x) * 2**form.fraction) for x in vector] for vector in vectors]
    return [sum(column) for column in zip(*rows, strict=True)]


@settings(max_examples=60, deadline=None)
@given(losses(), st.sampled_from(FORMS), st.integers(1, 5), st.integers(0, 2**32))
def test_the_sum_is_the_plain_one_to_the_bit(
    lost: tuple[int, int, dict[int, str]], form: FixedPoint, numbers: int, seed: int
) -> None:
    count, threshold, stages = lost
    generator = torch.Generator().manual_seed(seed)
    largest = form.largest(count)
    scale = torch.exp2(-30 * torch.rand(numbers, generator=generator, dtype=torch.float64))
    vectors = {
        number: largest * scale * (2 * torch.rand(numbers, generator=generator).double() - 1)
        for number in numbers_of(count)
    }
    request, replies = summed(vectors, form, threshold, lambda stage, n: stages.get(n) == stage)
    *others, reply = replies
    found = check_reply(request, reply)
    assert isinstance(found, Vector)
    left = {n: v for n, v in vectors.items() if stages.get(n) in (None, "agreement", "unmasking")}
    expected = plain_sum([*left.values()], form)
    assert found.numbers.tolist() == [total / 2**form.fraction for total in expected]
    error = (found.numbers - torch.stack([*left.values()]).sum(0)).abs().max()
    assert error <= len(left) * form.step / 2 + 1e-9 * largest
    assert reply.clients == (*left,)
    assert {each.client for each in others} == vectors.keys() - left.keys()
    for each in others:
        assert isinstance(each.update, AbsentClientError)
        # What is lost under masks is so by the exchange itself, which needs no name.
        assert stages[each.client] in str(each.update) or stages[each.client] == "under masks"


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_there_is_no_sum(stage: str) -> None:
    vectors = dict.fromkeys(numbers_of(5), torch.ones(2, dtype=torch.float64))
    gone = set(numbers_of(2))
    _, replies = summed(vectors, FORMS[1], 4, lambda at, n: at == stage and n in gone)
    reasons = {n: reply.update for reply in replies for n in reply.clients}
    assert reasons.keys() == vectors.keys()
    below = [n for n, why in reasons.items() if isinstance(why, BelowThresholdError)]
    assert set(below) == vectors.keys() - gone
    assert all(isinstance(reasons[number], AbsentClientError) for number in gone)
    for number in below:
        assert "3 clients at the stage of" in str(reasons[number])
        assert "needs 4 (privacy.threshold)" in str(reasons[number])


@settings(max_examples=5, deadline=None)
@given(st.sets(st.integers(0, 29), max_size=5), st.data())
def test_with_few_holders_the_sum_is_the_plain_one_to_the_bit(
    gone: set[int], data: st.DataObject
) -> None:
    """20 of 30 clients hold shares, and 14 of these give a secret; five may be lost anywhere."""
    stages = {7 * n + 2: data.draw(st.sampled_from(STAGES)) for n in sorted(gone)}
    vectors = {n: torch.randn(3, dtype=torch.float64) for n in numbers_of(30)}
    loses = lambda stage, n: stages.get(n) == stage  # noqa: E731
    request, replies = summed(vectors, FORMS[1], None, loses, holders=20)
    found = check_reply(request, replies[-1])
    assert isinstance(found, Vector)
    left = [v for n, v in vectors.items() if stages.get(n) in (None, "agreement", "unmasking")]
    expected = plain_sum(left, FORMS[1])
    assert found.numbers.tolist() == [total / 2 ** FORMS[1].fraction for total in expected]


def test_bytes_are_those_of_the_messages() -> None:
    """Each client sends keys, boxes, masked numbers, tags and shares, and no more."""
    count, numbers = 3, 100
    others = count - 1
    vectors = dict.fromkeys(numbers_of(count), torch.ones(numbers, dtype=torch.float64))
    _, (reply,) = summed(vectors, FORMS[1])
    keys, box, word, number = 2 * 32, 2 * 16 * 4 + 16, 8, 4
    tag, share, signature = 16 + number, 16 * 4 + number, 96
    offered = keys + signature
    up = (
        *(offered + count * number, others * (box + number), numbers * word + others * tag),
        *(others * tag, count * share),
    )
    assert reply.bytes_up == count * sum(up)
    each = 2 * number  # for whom a row is, and from whom
    told = others * (each + 1 + offered)
    mail = others * (each + box) + others * (each + 1)
    tags = others * (each + 16)
    assert reply.bytes_down == count * (count * number + told + mail + 2 * tags)
    assert count_bytes(pack(reply.update)) == numbers * word


# --- by hand --------------------------------------------------------------------------------------


class Notary:
    """Signatures of some clients, without public keys: whoever is asked to check them knows all."""

    def __init__(self, number: int, known: Collection[int]) -> None:
        self.number = number
        self.known = known

    def signed(self, content: bytes) -> bytes:
        assert self.number in self.known
        return hmac.digest(b"%d" % self.number, content, "sha512").ljust(SIGNATURE_BYTES, b"\0")

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        if client not in self.known or signature != Notary(client, self.known).signed(content):
            raise RefusedUpdateError(f"client {client} has not signed its keys")


def terms_for(asked: int, threshold: int, holders: int | None = None) -> Terms:
    return Terms(b"by hand", threshold, FORMS[1], asked, holders or asked)


@dataclass
class Play:
    """A sum whose stages are called by hand, so that the server can lie."""

    terms: Terms
    vectors: Mapping[int, Words]
    identity: Callable[[int], Identity] = lambda number: Unsigned()
    before: Mapping[int, Before] = field(default_factory=dict)
    participant: Callable[..., Participant] = Participant
    masked: dict[int, Words] = field(default_factory=dict)
    tags: dict[int, Tags] = field(default_factory=dict)
    agreed: dict[int, Tags] = field(default_factory=dict)
    answers: dict[int, Revealed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clients = {
            n: self.participant(n, self.terms, self.vectors, self.identity(n), self.before.get(n))
            for n in self.vectors
        }
        self.server = Collector(self.terms, self.vectors)
        self.offers: dict[int, Offer] = {n: client.keys() for n, client in self.clients.items()}
        self.neighbours = self.server.neighbours(self.offers)

    def share(self) -> "Play":
        """Stage 2."""
        self.boxes = {n: c.shares(self.neighbours[n]) for n, c in self.clients.items()}
        self.mail, self.shared = self.server.route_shares(self.boxes)
        return self

    def mask(self, *but: int) -> "Play":
        """Stage 3: of all but some, whose vectors are lost."""
        for n, client in self.clients.items():
            client.receive(self.mail[n], self.shared[n])
            self.masked[n], self.tags[n] = client.masked(self.vectors[n])
        for n in self.masked.keys() - set(but):
            self.server.take(n, self.masked[n], self.tags[n])
        return self

    def agree(self, *but: int) -> "Play":
        """Stage 4."""
        arrived = self.server.arrived()
        self.agreed = {n: self.clients[n].agreed(tags) for n, tags in arrived.items()}
        self.agreed = {n: tags for n, tags in self.agreed.items() if n not in but}
        self.included = self.server.included(self.agreed)
        return self

    def total(self, *but: int) -> Words:
        """Stage 5."""
        there = {n: tags for n, tags in self.included.items() if n not in but}
        self.answers = {n: self.clients[n].revealed(tags) for n, tags in there.items()}
        return self.server.total(self.answers)


def words(*numbers: int) -> Words:
    return np.array(numbers, np.dtype("<u8"))


def vectors_of(count: int) -> dict[int, Words]:
    return {n: words(1000**n % 2**40, n) for n in range(count)}


def test_what_the_server_sees_is_uniform_whatever_the_vectors() -> None:
    """Masked vectors of zeros: each number, and each sum of fewer than all, is spread evenly."""
    zeros = np.zeros(20_000, np.dtype("<u4"))
    terms = Terms(b"by hand", 3, FORMS[0], 3, 3)
    masked = Play(terms, dict.fromkeys([1, 2, 3], zeros)).share().mask().masked
    seen = [masked[1], masked[2], masked[1] + masked[2], masked[1] + masked[2] + masked[3]]
    for numbers in seen:
        counts = np.bincount(numbers >> 26, minlength=64)
        expected = len(zeros) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 150  # 63 degrees of freedom


def test_below_the_threshold_of_answers_masks_stay_on() -> None:
    """One answer too few in the last stage, and the server has no seed of anybody."""
    play = Play(terms_for(3, 3), vectors_of(3)).share().mask().agree()
    with pytest.raises(BelowThresholdError, match="2 clients at the stage of unmasking"):
        play.total(0)


def test_a_client_reveals_one_kind_of_share_of_each_and_once() -> None:
    play = Play(terms_for(4, 3), vectors_of(4)).share().mask(3).agree()
    assert play.total().tolist() == np.sum([play.vectors[n] for n in (0, 1, 2)], 0).tolist()
    for answer in play.answers.values():
        assert answer.seeds.keys() == {0, 1, 2}
        assert answer.keys.keys() == {3}
    with pytest.raises(RefusedUpdateError, match="unmasking was asked for twice"):
        play.clients[1].revealed(play.included[1])
    with pytest.raises(RefusedUpdateError, match="agreement was asked for twice"):
        play.clients[1].agreed({})


def test_two_vectors_never_have_the_same_masks() -> None:
    """Else their difference would be the masked ones'."""
    play = Play(terms_for(3, 2), vectors_of(3)).share().mask()
    with pytest.raises(RefusedUpdateError, match="masked vector was asked for twice"):
        play.clients[1].receive(play.mail[1], play.shared[1])
    with pytest.raises(RefusedUpdateError, match="no masks for a vector"):
        play.clients[1].masked(words(1, 1))
    with pytest.raises(RefusedUpdateError, match="shares was asked for twice"):
        play.clients[1].shares(play.neighbours[1])


@pytest.mark.parametrize("stage", ["receive", "agreed", "revealed"])
def test_stages_come_in_their_turn(stage: str) -> None:
    client = Participant(1, terms_for(3, 2), [1, 2, 3])
    with pytest.raises(RefusedUpdateError, match="out of turn"):
        getattr(client, stage)({}, *([[]] if stage == "receive" else []))


def test_a_part_that_has_failed_is_over() -> None:
    """Who has sent no vector shows no share, whatever the server says has arrived."""
    play = Play(terms_for(3, 2), vectors_of(3)).share()
    with pytest.raises(RefusedUpdateError, match="unknown sender"):
        play.clients[2].receive({**play.mail[2], 9: b""}, play.shared[2])
    with pytest.raises(RefusedUpdateError, match="out of turn"):
        play.clients[2].receive(play.mail[2], play.shared[2])
    with pytest.raises(RefusedUpdateError, match="no masks"):
        play.clients[2].masked(words(0, 0))
    play.clients[1].receive(play.mail[1], play.shared[1])
    with pytest.raises(RefusedUpdateError, match="out of turn"):
        play.clients[1].agreed({})


def test_shares_that_were_changed_on_their_way_are_refused() -> None:
    play = Play(terms_for(3, 2), vectors_of(3)).share()
    box = play.mail[2][1]
    changed = {**play.mail[2], 1: bytes([box[0] ^ 1]) + box[1:]}
    with pytest.raises(RefusedUpdateError, match="client 1 has sealed was changed on its way"):
        play.clients[2].receive(changed, play.shared[2])


def test_a_sum_serves_its_purpose_only() -> None:
    """Masks of another sum do not cancel, even between the same keys."""
    other = replace(terms_for(3, 2), purpose=b"another")
    play = Play(terms_for(3, 2), vectors_of(3))
    stranger = Participant(2, other, play.vectors)
    play.neighbours[1][2] = play.neighbours[1][2]._replace(public=stranger.keys().public)
    box = play.clients[1].shares(play.neighbours[1])[2]
    stranger.shares(play.neighbours[2])
    with pytest.raises(RefusedUpdateError, match="changed on its way"):
        stranger.receive({1: box}, [1])


# --- a server that lies ---------------------------------------------------------------------------


class Credulous(Participant):
    """A client of the protocol of 2017: it shows shares whoever else says that it is in the sum."""

    def revealed(self, included: Mapping[int, bytes]) -> Revealed:
        gone = self._held.keys() - self._included
        return Revealed(
            {n: self._held[n][0] for n in self._included}, {n: self._held[n][1] for n in gone}
        )


TOLD = {0: [], 1: [0], 2: [0], 3: []}
"""Who is told of whom that its vector has arrived: enough to show b of 0 and s of all others."""


def shown_to_a_liar(play: Play, told: Mapping[int, Collection[int]]) -> dict[int, Revealed]:
    """What clients show that are told different things, with all tags that there are."""
    for n, client in play.clients.items():
        play.agreed[n] = client.agreed({other: play.tags[other][n] for other in told[n]})
    found = {}
    for n, client in play.clients.items():
        tags = {other: said[n] for other, said in play.agreed.items() if n in said}
        try:
            found[n] = client.revealed(tags)
        except BelowThresholdError:
            continue
    return found


def unmasked(play: Play, victim: int, found: Mapping[int, Revealed]) -> Words:
    """A client's vector, from its seed and the keys of all others."""
    quorum, vector = play.terms.quorum, play.masked[victim].copy()
    places = {holder: place for place, holder in enumerate(play.clients[victim].holders)}
    seeds = {places[n]: a.seeds[victim] for n, a in found.items() if victim in a.seeds}
    vector -= stream(join_shares(seeds, quorum), len(vector), play.terms.form)
    for other in play.vectors.keys() - {victim}:
        keys = {places[n]: a.keys[other] for n, a in found.items() if other in a.keys}
        public = play.offers[victim].public[32:]
        seed = KeyPair(join_shares(keys, quorum)).agreed(public, b"mask " + play.terms.purpose)
        mask = stream(seed, len(vector), play.terms.form)
        vector += -mask if victim < other else mask
    return vector


def test_two_kinds_of_shares_are_not_to_be_had_by_lies() -> None:
    """All vectors arrive, and each client is told that others have not."""
    vectors = vectors_of(4)
    play = Play(terms_for(4, 3), vectors, participant=Credulous).share().mask()
    found = shown_to_a_liar(play, TOLD)
    assert unmasked(play, 0, found).tolist() == vectors[0].tolist()
    play = Play(terms_for(4, 3), vectors).share().mask()
    found = shown_to_a_liar(play, TOLD)
    assert found.keys() == {0}
    with pytest.raises(ValueError, match="shares of the 3"):
        unmasked(play, 0, found)


def test_each_sum_that_a_liar_learns_has_the_honest_clients_that_are_promised() -> None:
    """The claim of ``protocol.py``, whatever clients are told; it fails without the agreement."""
    assert not any(breaks_the_promise(Participant, seed) for seed in range(200))
    assert any(breaks_the_promise(Credulous, seed) for seed in range(2000))


def breaks_the_promise(participant: Callable[..., Participant], seed: int) -> bool:
    """Whether a server that lies at random, with some clients, learns more than it should."""
    chance = random.Random(seed)  # noqa: S311 - it is no secret
    count = chance.randint(3, 7)
    terms = terms_for(count, chance.randint(count // 2 + 1, count), chance.randint(2, count))
    bad = set(chance.sample(range(count), chance.randint(0, count - 2)))
    play = Play(terms, vectors_of(count), participant=participant).share()
    colluding = {n: len(bad & set(client.holders)) for n, client in play.clients.items()}
    honest = sorted(play.vectors.keys() - bad)
    worst = max(colluding[n] for n in honest)
    if 2 * terms.quorum <= terms.holders + worst:
        return False
    often = chance.choice([0, 0, 0.1, 0.3])

    def truth() -> bool:
        return chance.random() >= often

    # Whose sum the server would like to learn alone: it says that others have not arrived.
    wanted = set(chance.sample(honest, chance.randint(1, len(honest))))
    for n, client in play.clients.items():
        mail = {m: box for m, box in play.mail[n].items() if truth()}
        with suppress(BelowThresholdError):
            client.receive(mail, [m for m in play.shared[n] if truth()])
            play.masked[n], play.tags[n] = client.masked(play.vectors[n])
    for n in play.tags:
        said = wanted if truth() else honest
        told = {
            m: tags[n] for m, tags in play.tags.items() if n in tags and (n in bad or m in said)
        }
        wards = {m: tag for m, tag in told.items() if m in play.clients[n]._held and truth()}
        play.agreed[n] = play.clients[n].agreed(wards)
    seeds, keys = Counter(colluding), Counter(colluding)
    for n in honest:
        tags = {m: said[n] for m, said in play.agreed.items() if n in said}
        with suppress(RefusedUpdateError):
            shown = play.clients[n].revealed(tags)
            seeds.update(shown.seeds.keys())
            keys.update(shown.keys.keys())
    known = {n: seeds[n] >= terms.quorum for n in honest}
    lost = {n: keys[n] >= terms.quorum for n in honest}
    learnt = [part for part in parts_of(play, honest, lost) if all(known[n] for n in part)]
    return any(known[n] and lost[n] for n in honest) or any(
        len(part) < terms.quorum - worst for part in learnt
    )


def parts_of(play: Play, honest: Collection[int], lost: Mapping[int, bool]) -> list[set[int]]:
    """The honest clients that masks hold together of which the server has no key."""
    parts = [{n} for n in honest]
    for one, other in itertools.combinations(honest, 2):
        masks = other in play.tags.get(one, {}) or one in play.tags.get(other, {})
        if masks and not lost[one] and not lost[other]:
            first = next(part for part in parts if one in part)
            second = next(part for part in parts if other in part)
            if first is not second:
                parts.remove(second)
                first |= second
    return parts


def test_a_server_cannot_put_its_own_keys_in_the_place_of_a_clients() -> None:
    terms, vectors = terms_for(3, 2), vectors_of(3)
    for identity, refused in ((lambda n: Unsigned(), False), (lambda n: Notary(n, vectors), True)):
        play = Play(terms, vectors, identity)
        false = Participant(2, terms, vectors).keys()
        play.neighbours[0][2] = Neighbour(false.public, play.offers[2].signature, True)
        if refused:
            with pytest.raises(RefusedUpdateError, match="client 2 has not signed"):
                play.clients[0].shares(play.neighbours[0])
        else:
            play.clients[0].shares(play.neighbours[0])


@pytest.mark.parametrize("what", ["purpose", "threshold", "holders", "asked", "form", "number"])
def test_a_signature_is_for_one_sum_on_the_same_terms(what: str) -> None:
    """Keys that were signed for another sum, other clients or another client are not taken."""
    terms, vectors = terms_for(4, 3), vectors_of(4)
    play = Play(terms, vectors, lambda n: Notary(n, vectors))
    elsewhere = {
        "purpose": replace(terms, purpose=b"another"),
        "threshold": replace(terms, threshold=4),
        "holders": replace(terms, holders=3),
        "form": replace(terms, form=FORMS[0]),
    }.get(what, terms)
    asked = [0, 1, 2, 9] if what == "asked" else vectors
    number = 3 if what == "number" else 2
    offer = Participant(number, elsewhere, asked, Notary(number, vectors)).keys()
    play.neighbours[0][2] = Neighbour(offer.public, offer.signature, True)
    with pytest.raises(RefusedUpdateError, match="client 2 has not signed"):
        play.clients[0].shares(play.neighbours[0])


def test_a_list_with_a_key_that_comes_twice_is_refused() -> None:
    """Else the server could put one client's key in place of all others'."""
    play = Play(terms_for(3, 2), vectors_of(3))
    play.neighbours[1][2] = play.neighbours[1][2]._replace(public=play.offers[0].public)
    with pytest.raises(RefusedUpdateError, match="not sound"):
        play.clients[1].shares(play.neighbours[1])


def test_a_sum_with_the_servers_own_client_is_refused() -> None:
    """It asks one client, and takes part itself: its sum without its own numbers is the vector."""
    vectors = {0: words(5, 6), 9: words(0, 0)}
    terms = terms_of(PrivacyConfig(secure_sums=True), Task("test", "", 0, 0), 2)
    sybil = Play(terms, vectors).share().mask().agree()
    assert sybil.total().tolist() == [5, 6]
    with pytest.raises(RefusedUpdateError, match="client 9 has not signed"):
        Play(terms, vectors, lambda n: Notary(n, [n])).share()


def guarded(guard: Safeguard, clients: int = 10, **privacy: Any) -> Participants:
    return Participants(PrivacyConfig(secure_sums=True, **privacy), clients, guard)


@pytest.mark.parametrize(
    ("floor", "asked", "privacy", "accepted"),
    [
        (Floor(), 2, {}, True),
        (Floor(honest=3), 2, {}, False),
        (Floor(honest=3), 3, {}, True),
        (Floor(colluders=1), 3, {}, True),
        (Floor(colluders=2), 3, {}, False),
        (Floor(colluders=3, honest=4), 10, {}, True),  # 7 of 10: 14 > 10 + 3, and 7 - 3 = 4
        (Floor(colluders=3, honest=5), 10, {}, False),
        (Floor(colluders=4), 10, {}, False),
        (Floor(colluders=6), 10, {"threshold": 9}, True),
        (Floor(colluders=3), 10, {"holders": 4}, False),
    ],
)
def test_an_owner_has_a_floor(
    floor: Floor, asked: int, privacy: dict[str, int], accepted: bool
) -> None:
    part, begun = guarded(Safeguard(floor=floor), **privacy), Begun(begun_with(range(asked)))
    if accepted:
        assert len(part.send_keys(TASK, begun, 0).read().holders) >= 2
        return
    with pytest.raises(RefusedUpdateError, match=r"its owner wants \d honest clients in each sum"):
        part.send_keys(TASK, begun, 0)


def test_six_of_ten_that_collude_with_three_late_learn_a_vector_and_an_owner_can_refuse() -> None:
    """The threshold alone promises threshold - c honest clients: here one."""
    vectors = vectors_of(10)
    late, colluders = (7, 8, 9), range(1, 7)
    play = Play(terms_for(10, 7), vectors).share().mask(*late).agree()
    rest = play.total() - np.sum([vectors[n] for n in colluders], 0)
    assert rest.tolist() == vectors[0].tolist()
    begun = Begun(begun_with(range(10)))
    guarded(Safeguard()).send_keys(TASK, begun, 0)
    with pytest.raises(RefusedUpdateError, match="also if 6 of the others collude"):
        guarded(Safeguard(floor=Floor(colluders=6))).send_keys(TASK, begun, 0)


def forged(play: Play, how: str) -> Mapping[int, bytes]:
    """What is given to client 0 as its holders' word that it is in the sum."""
    if how == "random":
        return {n: bytes(16) for n in (1, 2, 3)}
    if how == "of another stage":
        return {n: play.tags[n][0] for n in (1, 2, 3)}
    if how == "its own":
        return {n: play.agreed[0][n] for n in (1, 2, 3)}
    if how == "for others":
        return {n: play.agreed[n][n % 3 + 1] for n in (1, 2, 3)}
    other = Play(play.terms, play.vectors).share().mask().agree()
    return {n: other.agreed[n][0] for n in (1, 2, 3)}


@pytest.mark.parametrize(
    "how", ["random", "of another stage", "its own", "for others", "of another sum"]
)
def test_a_tag_that_is_forged_or_replayed_is_none(how: str) -> None:
    play = Play(terms_for(4, 3), vectors_of(4)).share().mask().agree()
    with pytest.raises(BelowThresholdError, match="1 of 4 holders of shares at the stage of"):
        play.clients[0].revealed(forged(play, how))


def test_a_forged_tag_does_not_make_a_vector_arrive() -> None:
    play = Play(terms_for(4, 3), vectors_of(4)).share().mask()
    own, others = play.tags[0], play.tags
    tags = play.clients[0].agreed({1: own[1], 2: bytes(16), 3: others[3][0]})
    assert tags.keys() == {3}
    with pytest.raises(RefusedUpdateError, match="whose shares it does not hold"):
        play.clients[1].agreed({9: bytes(16)})


def test_vectors_that_answer_different_messages_do_not_add_up() -> None:
    """The message of one client could be such that the vectors of all others vanish."""
    vectors = vectors_of(3)
    for about, adds_up in ((b"one", True), (b"another", False)):
        play = Play(terms_for(3, 2), vectors).share()
        for n, client in play.clients.items():
            client.receive(play.mail[n], play.shared[n])
            masked, tags = client.masked(vectors[n], about if n == 0 else b"one")
            play.tags[n] = tags
            play.server.take(n, masked, tags)
        total = play.agree().total()
        assert (total == np.sum([*vectors.values()], 0)).all() == adds_up
        assert (total == np.sum([*vectors.values()], 0)).any() == adds_up


# --- a second sum for the same task ---------------------------------------------------------------


def first_sum() -> tuple[dict[int, Words], dict[int, Before], Words]:
    """Of four clients one is late."""
    vectors = vectors_of(4)
    play = Play(terms_for(4, 3), vectors).share().mask(3).agree()
    total = play.total()
    return vectors, {n: play.clients[n].shown for n in (0, 1, 2)}, total


def without_the_late(vectors: dict[int, Words], before: dict[int, Before]) -> Play:
    """The same sum again; the one that was late does not answer at all."""
    again = Play(terms_for(4, 3), vectors, before=before)
    del again.clients[3], again.offers[3]
    again.server = Collector(again.terms, vectors)
    again.neighbours = again.server.neighbours(again.offers)
    return again


def test_a_sum_that_is_asked_for_again_is_the_same() -> None:
    """A server that was interrupted repeats a round; clients that were away stay away."""
    vectors, before, total = first_sum()
    again = without_the_late(vectors, before)
    assert again.share().mask().agree().total().tolist() == total.tolist()


SECOND = "a second sum for the same task, over other clients"
"""The difference of the two would be one client's vector."""


def test_a_second_sum_has_the_same_clients() -> None:
    """With others it does not begin; with one more or one less nobody sends a vector."""
    vectors, before, _ = first_sum()
    with pytest.raises(RefusedUpdateError, match=SECOND):
        Play(terms_for(3, 2), {n: vectors[n] for n in (0, 1, 2)}, before=before)
    play = Play(terms_for(4, 3), vectors, before=before).share()
    for number in before:
        with pytest.raises(RefusedUpdateError, match=SECOND):
            play.clients[number].receive(play.mail[number], play.shared[number])
    play = Play(terms_for(4, 2), vectors, before=before).share()
    with pytest.raises(RefusedUpdateError, match=SECOND):
        play.clients[0].receive({1: play.mail[0][1]}, [1])


def test_in_a_second_sum_nobody_shows_shares_with_one_late_client() -> None:
    vectors, before, _ = first_sum()
    again = without_the_late(vectors, before)
    again.share().mask(2)
    for number, tags in again.server._tags.items():
        told = {n: said[number] for n, said in again.server._tags.items() if n != number}
        assert tags
        with pytest.raises(RefusedUpdateError, match=SECOND):
            again.clients[number].agreed(told)
        with pytest.raises(RefusedUpdateError, match="out of turn"):
            again.clients[number].revealed({})


def test_a_client_keeps_what_it_has_shown_of_each_task() -> None:
    guard = Safeguard(before={})
    part = guarded(guard, clients=3)
    config = part.config
    begun = Begun(begun_with([0, 1, 2]))
    one = part.send_keys(TASK, begun, 0).read()
    terms = terms_of(config, TASK, 3)
    others = {n: Participant(n, terms, [0, 1, 2]) for n in (1, 2)}
    play = Play(terms, vectors_of(3))
    play.clients = {0: part.of(TASK, 0), **others}
    play.offers = {0: one, **{n: other.keys() for n, other in others.items()}}
    play.server = Collector(terms, play.vectors)
    play.neighbours = play.server.neighbours(play.offers)
    play.share().mask().agree()
    assert guard.before == {}
    part.send_shown(TASK, Letters.of({0: play.included[0]}, 16), 0)
    assert guard.before == {(3, 1): Before({0, 1, 2}, [0, 1, 2], {0, 1, 2})}
    with pytest.raises(RefusedUpdateError, match="a second sum for the same task"):
        part.send_keys(TASK, Begun(begun_with([0, 1])), 0)
    part.send_keys(replace(TASK, index=2), Begun(begun_with([0, 1])), 0)


# --- who holds shares -----------------------------------------------------------------------------


def test_holders_are_drawn_by_the_client_alone_and_evenly() -> None:
    terms = terms_for(30, 21, holders=10)
    drawn = [Participant(4, terms, range(30)).holders for _ in range(400)]
    assert all(len(set(each)) == 10 and 4 in each for each in drawn)
    times = np.bincount(np.concatenate(drawn), minlength=30)
    assert times[4] == 400
    mean, deviation = 400 * 9 / 29, (400 * 9 / 29 * 20 / 29) ** 0.5
    assert np.abs(np.delete(times, 4) - mean).max() < 5 * deviation


def test_the_server_refuses_holders_that_were_not_asked_for() -> None:
    server = Collector(terms_for(5, 3, holders=3), range(5))
    offer = Participant(0, server.terms, range(5)).keys()
    server.check(0, offer)
    for holders in ([0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 9]):
        with pytest.raises(RefusedUpdateError, match="not those that were asked"):
            server.check(0, offer._replace(holders=holders))


@pytest.mark.parametrize("asked", [101, 300, 1000])
def test_fewest_holders_bear_a_tenth_that_colludes_and_a_tenth_that_is_lost(asked: int) -> None:
    """By the exact probability, from binomial coefficients."""
    threshold = 2 * asked // 3 + 1
    holders = fewest_holders(asked, threshold)
    assert 100 <= holders <= 110
    quorum, bad = -(-threshold * holders // asked), asked // 10
    most = min(2 * quorum - holders - 1, holders - quorum)
    beyond = sum(
        comb(bad, drawn) * comb(asked - 1 - bad, holders - 1 - drawn)
        for drawn in range(most + 1, min(bad, holders - 1) + 1)
    )
    assert beyond * 2**40 <= comb(asked - 1, holders - 1)


def test_up_to_a_hundred_all_hold_shares() -> None:
    config = PrivacyConfig(secure_sums=True)
    for asked in (2, 3, 10, 100):
        terms = terms_of(config, TASK, asked)
        assert (terms.holders, terms.quorum) == (asked, terms.threshold)
        assert 2 * terms.threshold > asked


@pytest.mark.parametrize(("value", "reason"), [(float("nan"), "NaN"), (3e4, "up to which")])
def test_numbers_that_would_spoil_the_sum_are_refused(value: float, reason: str) -> None:
    with pytest.raises(RefusedUpdateError, match=reason):
        FORMS[0].encode(torch.tensor([0.0, value], dtype=torch.float64), summands=3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMS), st.floats(-1, 1), st.integers(1, 1000))
def test_rounding_is_by_half_a_step_at_most(form: FixedPoint, share: float, summands: int) -> None:
    value = share * form.largest(summands)
    words = form.encode(torch.tensor([value], dtype=torch.float64), summands)
    found = float(form.decode(words))
    assert abs(found - value) <= form.step / 2 + abs(value) * 2**-52
