"""The protocol of secure sums: equality to the plain sum, dropouts, refusals, and what leaks."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AbsentClientError,
    ClientSide,
    ClientWork,
    Exchange,
    Figures,
    Nothing,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.parts import Form, Spec, Sum
from ccfcpp.engine.payload import pack, size
from ccfcpp.engine.stages import Request, checked, through
from ccfcpp.engine.transport import InProcess, Reply
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.client import works_in_sums
from ccfcpp.privacy.sums.fixed_point import FixedPoint, Words
from ccfcpp.privacy.sums.protocol import (
    BelowThresholdError,
    Collector,
    Participant,
    Terms,
)
from ccfcpp.privacy.sums.stage import Summing
from tests.support.federation import CPU
from tests.support.sums import STAGES, Loss, Lossy

FORMS = [FixedPoint(32, 16), FixedPoint(64, 32)]


@dataclass(frozen=True)
class Vector:
    """What adds up: float64 of shape (numbers,)."""

    numbers: Tensor


EXCHANGE = Exchange("vectors", Nothing, Vector, {"numbers": Sum()})


class Sending(ClientWork[Nothing, Vector]):
    """Each client has a vector, by its number."""

    exchange = EXCHANGE

    def __init__(self, vectors: Mapping[int, Tensor]) -> None:
        self.vectors = vectors

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[Vector]:
        return [Vector(self.vectors[client.id]) for client in clients]


class Receiving(ServerWork[None, Nothing, Vector]):
    """The server knows how long vectors are."""

    exchange = EXCHANGE

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def broadcast(self, state: None) -> Nothing:
        return Nothing()

    def form(self, message: Nothing) -> Form:
        return {"numbers": Spec(torch.float64, (self.numbers,))}

    def aggregate(
        self, state: None, updates: Iterable[Vector], randomness: Randomness
    ) -> tuple[None, Figures]:
        raise NotImplementedError


def summed(
    vectors: Mapping[int, Tensor],
    form: FixedPoint,
    threshold: int | None = None,
    loses: Loss = lambda stage, client: False,
) -> tuple[Request, list[Reply]]:
    """What comes of a secure sum of some vectors, by the client's number."""
    config = PrivacyConfig(
        secure_sums=True, threshold=threshold, bits=form.bits, fraction_bits=form.fraction
    )
    image = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    clients = [Client(number, f"client {number}", image) for number in vectors]
    works = works_in_sums({EXCHANGE.name: Sending(vectors)}, config, len(clients))
    memories = ClientMemories(CPU, budget=0)
    transport = InProcess(clients, ClientSide(works), memories, Randomness(0))
    numbers = len(next(iter(vectors.values())))
    members = [client.member for client in clients]
    request = Request(Receiving(numbers), Task("test", EXCHANGE.name, 3, 1), Nothing(), members)
    return request, list(through(transport, [Lossy(loses), Summing(config)])(request))


def numbers_of(count: int) -> list[int]:
    return [7 * number + 2 for number in range(count)]


def plain_sum(vectors: list[Tensor], form: FixedPoint) -> list[int]:
    """The sum of the rounded numbers, as Python's integers."""
    rows = [[round(float(x) * 2**form.fraction) for x in vector] for vector in vectors]
    return [sum(column) for column in zip(*rows, strict=True)]


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, int, dict[int, str]]:
    """Some clients, a threshold, and what is lost of whom; enough are left."""
    count = draw(st.integers(2, 6))
    threshold = draw(st.integers(2, count))
    gone = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count - threshold))
    stages = {7 * number + 2: draw(st.sampled_from(STAGES)) for number in gone}
    return count, threshold, stages


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
    found = checked(request, reply)
    assert isinstance(found, Vector)
    left = {n: v for n, v in vectors.items() if stages.get(n) in (None, "unmasking")}
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


def test_bytes_are_those_of_the_messages() -> None:
    """Each client sends keys, boxes, masked numbers and shares, and no more."""
    count, numbers = 3, 100
    vectors = dict.fromkeys(numbers_of(count), torch.ones(numbers, dtype=torch.float64))
    _, (reply,) = summed(vectors, FORMS[1])
    keys, box, word, number = 2 * 32, 2 * 16 * 4 + 16, 8, 8
    share = 16 * 8 + number
    up = keys + (count - 1) * (box + number) + numbers * word + count * share
    assert reply.bytes_up == count * up
    begun, listed, arrived = number, count * (keys + number), count * number
    mail = count * (count - 1) * (box + 2 * number)
    assert reply.bytes_down == count * (begun + listed + mail + arrived)
    assert size(pack(reply.update)) == numbers * word


def masked_round(
    vectors: Mapping[int, Words], form: FixedPoint, threshold: int
) -> tuple[dict[int, Participant], Collector, dict[int, Words]]:
    """All stages up to the masked vectors, by hand."""
    terms = Terms(b"by hand", threshold, form, len(vectors))
    clients = {number: Participant(number, terms) for number in vectors}
    server = Collector(terms)
    roster = server.roster({number: client.keys() for number, client in clients.items()})
    boxes = server.routed({number: client.shares(roster) for number, client in clients.items()})
    for number, client in clients.items():
        client.receive(boxes[number])
    masked = {number: client.masked(vectors[number]) for number, client in clients.items()}
    return clients, server, masked


def test_what_the_server_sees_is_uniform_whatever_the_vectors() -> None:
    """Masked vectors of zeros: each number, and each sum of fewer than all, is spread evenly."""
    form, zeros = FORMS[0], np.zeros(20_000, np.dtype("<u4"))
    _, _, masked = masked_round(dict.fromkeys([1, 2, 3], zeros), form, 3)
    seen = [masked[1], masked[2], masked[1] + masked[2], masked[1] + masked[2] + masked[3]]
    for words in seen:
        counts = np.bincount(words >> 26, minlength=64)
        expected = len(zeros) / 64
        assert ((counts - expected) ** 2 / expected).sum() < 150  # 63 degrees of freedom


def test_below_the_threshold_of_answers_masks_stay_on() -> None:
    """One answer too few in the last stage, and the server has no seed of anybody."""
    vector = np.arange(4, dtype=np.dtype("<u8"))
    clients, server, masked = masked_round(dict.fromkeys([1, 2, 3], vector), FORMS[1], 3)
    for number, words in masked.items():
        server.take(number, words)
    arrived = server.arrived()
    answers = {number: clients[number].revealed(arrived) for number in (1, 2)}
    with pytest.raises(BelowThresholdError, match="2 clients at the stage of unmasking"):
        server.total(answers)


def test_a_client_reveals_one_kind_of_share_of_each_and_once() -> None:
    vector = np.zeros(1, np.dtype("<u8"))
    clients, _, _ = masked_round(dict.fromkeys([1, 2, 3, 4], vector), FORMS[1], 3)
    answer = clients[1].revealed([1, 2, 3])
    assert answer.seeds.keys() == {1, 2, 3}
    assert answer.keys.keys() == {4}
    with pytest.raises(RefusedUpdateError, match="unmasking was asked for twice"):
        clients[1].revealed([1, 2, 3, 4])
    with pytest.raises(RefusedUpdateError, match="took part"):
        clients[2].revealed([1, 2, 3, 9])
    with pytest.raises(BelowThresholdError):
        clients[3].revealed([1, 2])
    with pytest.raises(RefusedUpdateError, match="took part"):
        clients[4].revealed([1, 2, 3])


def test_two_vectors_never_have_the_same_masks() -> None:
    """Else their difference would be the masked ones'."""
    vector = np.zeros(1, np.dtype("<u8"))
    clients, _, _ = masked_round(dict.fromkeys([1, 2, 3], vector), FORMS[1], 2)
    with pytest.raises(RefusedUpdateError, match="masked vector was asked for twice"):
        clients[1].receive({2: b""})
    with pytest.raises(RefusedUpdateError, match="no masks for a vector"):
        clients[1].masked(vector + np.uint64(1))
    roster = {number: client.keys() for number, client in clients.items()}
    with pytest.raises(RefusedUpdateError, match="shares was asked for twice"):
        clients[1].shares(roster)


def test_stages_come_in_their_turn() -> None:
    client = Participant(1, Terms(b"by hand", 2, FORMS[1], 3))
    with pytest.raises(RefusedUpdateError, match="out of turn"):
        client.receive({2: b"", 3: b""})
    with pytest.raises(RefusedUpdateError, match="out of turn"):
        client.revealed([1, 2])


def test_a_part_that_has_failed_is_over() -> None:
    """Who has sent no vector shows no share, whatever the server says has arrived."""
    terms = Terms(b"by hand", 2, FORMS[1], 3)
    clients = {number: Participant(number, terms) for number in (1, 2, 3)}
    roster = {number: client.keys() for number, client in clients.items()}
    boxes = {number: client.shares(roster) for number, client in clients.items()}
    mail = {other: boxes[other][1] for other in (2, 3)}
    clients[1].receive(mail)
    with pytest.raises(RefusedUpdateError, match="out of turn"):
        clients[1].revealed([1, 2, 3])
    with pytest.raises(RefusedUpdateError, match="unknown sender"):
        clients[2].receive({1: boxes[1][2], 9: b""})
    with pytest.raises(RefusedUpdateError, match="out of turn"):
        clients[2].receive({1: boxes[1][2], 3: boxes[3][2]})
    with pytest.raises(RefusedUpdateError, match="no masks"):
        clients[2].masked(np.zeros(1, np.dtype("<u8")))


def test_shares_that_were_changed_on_their_way_are_refused() -> None:
    terms = Terms(b"by hand", 2, FORMS[1], 3)
    clients = {number: Participant(number, terms) for number in (1, 2)}
    roster = {number: client.keys() for number, client in clients.items()}
    box = clients[1].shares(roster)[2]
    clients[2].shares(roster)
    changed = bytes([box[0] ^ 1]) + box[1:]
    with pytest.raises(RefusedUpdateError, match="changed on their way"):
        clients[2].receive({1: changed})


def test_a_list_with_a_key_that_comes_twice_is_refused() -> None:
    """Else the server could put its own key in place of all others'."""
    client = Participant(1, Terms(b"by hand", 2, FORMS[1], 3))
    own = bytes(32) + bytes(range(32))
    with pytest.raises(RefusedUpdateError, match="not sound"):
        client.shares({1: client.keys(), 2: own, 3: own})


def test_a_sum_serves_its_purpose_only() -> None:
    """Masks of another sum do not cancel, even between the same keys."""
    first = Participant(1, Terms(b"one", 2, FORMS[1], 3))
    second = Participant(2, Terms(b"another", 2, FORMS[1], 3))
    roster = {1: first.keys(), 2: second.keys()}
    boxes = first.shares(roster)
    second.shares(roster)
    with pytest.raises(RefusedUpdateError, match="changed on their way"):
        second.receive({1: boxes[2]})


@pytest.mark.parametrize(("value", "reason"), [(float("nan"), "NaN"), (3e4, "up to which")])
def test_numbers_that_would_spoil_the_sum_are_refused(value: float, reason: str) -> None:
    with pytest.raises(RefusedUpdateError, match=reason):
        FORMS[0].encoded(torch.tensor([0.0, value], dtype=torch.float64), summands=3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FORMS), st.floats(-1, 1), st.integers(1, 1000))
def test_rounding_is_by_half_a_step_at_most(form: FixedPoint, share: float, summands: int) -> None:
    value = share * form.largest(summands)
    words = form.encoded(torch.tensor([value], dtype=torch.float64), summands)
    found = float(form.decoded(words))
    assert abs(found - value) <= form.step / 2 + abs(value) * 2**-52
