"""Noise of the clients under their masks: what is in a sum, and what the server sees of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import (
    Exchange,
    RefusedUpdateError,
)
from ccfcpp.engine.update_format import Sum, group_names
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.mechanism import Bounds, NoiseSource, shares
from ccfcpp.privacy.sums.agreement import terms_of
from ccfcpp.privacy.sums.distributed_noise import EXPONENT, OwnNoise, min_honest_clients
from ccfcpp.privacy.sums.identity import Floor, Safeguard
from ccfcpp.privacy.sums.protocol import Collector, Participant
from tests.support.sums import TASK, VECTORS, Loss, Vector, losses, secure_sum

PARTS = {"sums": Sum(each=True), "gradient": Sum(), "figures": Sum(report=True)}
STEP: Exchange[Any, Any] = Exchange("step", dict, dict, PARTS)
SHAPES = {"sums/a": (4,), "sums/b": (3, 2), "gradient/w": (50,), "figures/loss": ()}


def config_of(**more: Any) -> PrivacyConfig:
    return PrivacyConfig(level="client", secure_sums=True, noise=4.0, **more)


def random_parts(seed: int, factor: float = 1.0) -> dict[str, Tensor]:
    source = torch.Generator().manual_seed(seed)
    return {
        name: factor * torch.randn(shape, generator=source, dtype=torch.float64)
        for name, shape in SHAPES.items()
    }


@settings(max_examples=25, deadline=None)
@given(
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.integers(1, 300),
    st.integers(0, 2**32),
)
def test_of_the_sure_clients_alone_the_noise_is_what_the_accountant_is_told(
    noise: float, clip: float, clients: int, seed: int
) -> None:
    """One client, or image, changes the integers by less than 1/z of the deviation of their noise.

    Divided by deviations the change has a norm of 1/z at most, over all groups, as rounded.
    """
    bounds = Bounds(STEP, clip, {"sums/a": 3 * clip})
    own = OwnNoise(bounds, noise, clients)
    silent = Silent()
    rest = {n: p.round(decimals=2) for n, p in random_parts(seed + 1, 100 * clip).items()}
    one = bounds.clip_parts(random_parts(seed, 100 * clip))
    without = own.added(rest, silent, "")
    with_it = own.added({n: p + one[n] for n, p in rest.items()}, silent, "")
    deviation = math.sqrt(clients) * 2.0**EXPONENT
    squares = sum(float((with_it[n] - without[n]).square().sum()) for n in one) / deviation**2
    assert 0.95 / noise < math.sqrt(squares) <= 1 / noise
    for name in one:
        assert torch.equal(with_it[name], with_it[name].round())
    # And the noise is not larger than it has to be.
    scaled = own.scaled(dict.fromkeys(one, torch.tensor(deviation, dtype=torch.float64)))
    weights = shares(PARTS, group_names(PARTS, one))
    assert float(scaled["sums/a"]) == pytest.approx(
        noise * 3 * clip / math.sqrt(weights["sums/a"]), rel=1e-4
    )


class Silent(NoiseSource):
    """No noise."""

    def discrete(self, numbers: int, exponent: int, purpose: str) -> Any:
        return super().discrete(numbers, exponent, purpose) * 0


@dataclass
class Seen:
    """What clients have put under masks, and what the server had after it took them off."""

    words: dict[int, list[int]]
    total: list[int]


def summed(
    vectors: Mapping[int, Tensor], config: PrivacyConfig, *loses: Loss, **guard: Any
) -> tuple[list[Any], Seen]:
    """The updates that come of a secure sum with the clients' noise; and what was seen."""
    seen = Seen({}, [])
    masked, total = Participant.masked, Collector.total

    def noting(participant: Any, words: Any, *more: Any) -> Any:
        seen.words[participant.number] = words.tolist()
        return masked(participant, words, *more)

    def noted(collector: Any, revealed: Any) -> Any:
        found = total(collector, revealed)
        seen.total = found.tolist()
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Participant, "masked", noting)
        patched.setattr(Collector, "total", noted)
        _, replies = secure_sum(vectors, config, *loses, **guard)
    return [reply.update for reply in replies], seen


@settings(max_examples=15, deadline=None)
@given(losses(), st.integers(0, 2**32))
def test_a_sum_is_that_of_numbers_and_noises_to_the_bit(
    found: tuple[int, int, dict[int, str]], seed: int
) -> None:
    """Whoever is lost, and at whatever stage: a threshold of parts of the noise is in the sum."""
    count, threshold, gone = found
    source = torch.Generator().manual_seed(seed)
    vectors = {
        7 * n + 2: torch.rand(9, generator=source, dtype=torch.float64) / 9 for n in range(count)
    }
    config = config_of(threshold=threshold, reproducible_noise=True, colluders=0)
    updates, seen = summed(vectors, config, lambda stage, client: gone.get(client) == stage)
    (update,) = (each for each in updates if isinstance(each, Vector))
    terms = terms_of(config, TASK, count)
    own = OwnNoise.of(config, VECTORS, terms)
    assert own is not None
    assert own.honest == max(threshold, count // 2 + 1)
    inside = [n for n in vectors if gone.get(n) not in ("keys", "shares", "under masks")]
    assert len(inside) >= own.honest
    step = own._steps({"numbers": vectors[2]})["numbers"]
    totals = [0] * 9
    for number in inside:
        plain = [round(x / step) for x in vectors[number].tolist()]
        randomness = Randomness(0).at_round(3).of_client(number)
        purpose = f"{terms.purpose.decode()}/numbers"
        noise = NoiseSource(randomness).discrete(9, EXPONENT, purpose).tolist()
        words = [(a + b) % 2**64 for a, b in zip(plain, noise, strict=True)]
        assert seen.words[number] == words
        totals = [(total + word) % 2**64 for total, word in zip(totals, words, strict=True)]
    assert seen.total == totals
    signed = [total - 2**64 if total >= 2**63 else total for total in totals]
    assert update.numbers.tolist() == [total * step for total in signed]


def test_the_server_sees_no_sum_without_noise() -> None:
    """What comes out of the masks differs from the clients' numbers by noise of z C or more."""
    size, noise = 40_000, 4.0
    vectors = {n: torch.full((size,), 1 / 200, dtype=torch.float64) for n in range(6)}
    config = config_of(threshold=4)
    _, seen = summed(vectors, config)
    terms = terms_of(config, TASK, 6)
    own = OwnNoise.of(config, VECTORS, terms)
    assert own is not None
    assert own.honest == 4
    signed = torch.tensor([t - 2**64 if t >= 2**63 else t for t in seen.total]).double()
    views = own.scaled({"numbers": signed})["numbers"] - sum(vectors.values())
    # All six have added noise, made so that four are enough.
    assert float(views.std()) == pytest.approx(noise * math.sqrt(6 / 4), rel=0.02)
    four = torch.zeros(size, dtype=torch.float64)
    for number in range(4):
        words = [w - 2**64 if w >= 2**63 else w for w in seen.words[number]]
        four += own.scaled({"numbers": torch.tensor(words).double()})["numbers"] - 1 / 200
    assert noise * 0.98 < float(four.std()) < noise * 1.02
    again = summed(vectors, config)[1]
    assert again.total != seen.total


@pytest.mark.parametrize("clients", [5, 40, 400])
def test_colluders_are_made_up_for(clients: int) -> None:
    terms = terms_of(config_of(), TASK, clients)
    # A holder's share of a client's secrets is that of its quorum.
    assert min_honest_clients(terms, 0) == terms.quorum
    assert min_honest_clients(terms, 1) == terms.quorum - 1
    with pytest.raises(RefusedUpdateError, match=r"privacy\.colluders = \d+ is too many"):
        min_honest_clients(terms, clients - 1)
    bounds = Bounds(STEP, 1.0, {})
    parts = random_parts(0)
    one, other = (OwnNoise(bounds, 4.0, min_honest_clients(terms, n)).scaled(parts) for n in (0, 1))
    factor = math.sqrt(min_honest_clients(terms, 0) / min_honest_clients(terms, 1))
    assert float(other["gradient/w"][0] / one["gradient/w"][0]) == pytest.approx(factor, rel=1e-4)


def test_terms_tell_whether_each_client_adds_noise() -> None:
    """Clients that were told otherwise sign other terms, and have no masks in common."""
    kinds = [
        PrivacyConfig(secure_sums=True),
        config_of(noise_at="server"),
        config_of(),
        config_of(reproducible_noise=True),
    ]
    purposes = [terms_of(config, TASK, 5).purpose for config in kinds]
    assert purposes[0] == purposes[1]
    assert len(set(purposes)) == 3


REFUSED: list[tuple[dict[str, Any], float, str]] = [
    ({"clip": 1e-12, "level": "image"}, 1e12, "a number beyond 2^52 units"),
    ({"noise": 3e8}, 1.0, "is more than clients can add"),
    ({"noise": None}, 1.0, "does not say how much noise"),
]


@pytest.mark.parametrize(("change", "size", "reason"), REFUSED)
def test_what_has_no_noise_of_its_own_is_refused(
    change: dict[str, Any], size: float, reason: str
) -> None:
    vectors = {n: torch.full((3,), size, dtype=torch.float64) for n in range(5)}
    config = config_of(clip=1e30).model_copy(update=change)
    updates, _ = summed(vectors, config)
    assert updates
    for refusal in updates:
        assert isinstance(refusal, RefusedUpdateError)
        assert "\n" not in str(refusal)
    assert any(reason in str(refusal) for refusal in updates)


def test_noise_for_fewer_colluders_than_an_owner_assumes_is_refused() -> None:
    vectors = {n: torch.zeros(3, dtype=torch.float64) for n in range(6)}
    floor = Floor(colluders=1)
    refused, _ = summed(vectors, config_of(threshold=6), guard=Safeguard(floor=floor))
    assert all("colluders = 0, and its owner assumes 1" in str(each) for each in refused)
    (update,), _ = summed(
        vectors, config_of(threshold=6, colluders=1), guard=Safeguard(floor=floor)
    )
    assert isinstance(update, Vector)
