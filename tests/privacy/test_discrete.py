"""The discrete Gaussian beside its probabilities, and sums of it beside the Gaussian's bounds."""

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest, norm

from ccfcpp.core.randomness import Randomness
from ccfcpp.privacy.noise.accountant import Release, epsilon
from ccfcpp.privacy.noise.discrete_gaussian import discrete_normal
from ccfcpp.privacy.noise.mechanism import NoiseSource

SOURCE = NoiseSource(Randomness(5))
NUMBERS = 200_000
Pmf = NDArray[np.float64]


def pmf_of(deviation: float, most: int) -> Pmf:
    """P(−most) … P(most) by the definition."""
    places = np.arange(-most, most + 1)
    weights = np.exp(-((places / deviation) ** 2) / 2)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("exponent", [0, 1, 3])
def test_numbers_follow_the_probabilities(exponent: int) -> None:
    most, drawn = 3 << exponent, SOURCE.discrete(NUMBERS, exponent, f"{exponent}")
    wide = 12 << exponent
    within = pmf_of(2.0**exponent, wide)[wide - most : wide + most + 1]
    seen = [int((drawn == place).sum()) for place in range(-most, most + 1)]
    observed = np.array([*seen, NUMBERS - sum(seen)])
    expected = NUMBERS * np.array([*within, 1 - within.sum()])
    assert chisquare(observed, expected).pvalue > 1e-3


@pytest.mark.parametrize("source", [SOURCE, NoiseSource()])
def test_wide_numbers_are_normal(source: NoiseSource) -> None:
    drawn = source.discrete(NUMBERS, 24, "wide")
    assert drawn.dtype == np.int64
    scaled = drawn / 2**24
    assert kstest(scaled, "norm").pvalue > 1e-4
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        deviation = math.sqrt(math.factorial(2 * power) / (2**power * math.factorial(power)))
        assert abs((scaled**power).mean() - moment) < 5 * deviation / math.sqrt(NUMBERS)
    assert abs((scaled[1:] * scaled[:-1]).mean()) < 5 / math.sqrt(NUMBERS)
    # The low bits are as good as the high ones.
    low = np.bincount(drawn & 15, minlength=16)
    assert chisquare(low).pvalue > 1e-4


def test_numbers_follow_from_seed_and_purpose_where_they_are_to() -> None:
    drawn = [SOURCE.discrete(50, 24, purpose).tolist() for purpose in ("a", "a", "b")]
    assert drawn[0] == drawn[1] != drawn[2]
    secret = [NoiseSource().discrete(50, 24, "a").tolist() for _ in range(2)]
    assert secret[0] != secret[1]


def test_wider_than_integers_allow_is_refused() -> None:
    assert len(discrete_normal(0, 24, lambda numbers: np.zeros(numbers, np.uint64))) == 0
    with pytest.raises(ValueError, match="exponent 25"):
        discrete_normal(1, 25, lambda numbers: np.zeros(numbers, np.uint64))


def sum_of(parts: int, deviation: float) -> Pmf:
    """The probabilities of a sum of discrete Gaussians, by adding them one by one."""
    one = pmf_of(deviation, math.ceil(25 * deviation))
    found = one
    for _ in range(parts - 1):
        found = np.convolve(found, one)
    return found


def shifted(pmf: Pmf, by: int) -> tuple[Pmf, Pmf]:
    """Of a sum without and with somebody's number, at the same places."""
    return np.pad(pmf, (0, by)), np.pad(pmf, (by, 0))


@pytest.mark.parametrize(("parts", "deviation", "shift"), [(1, 2.0, 1), (3, 2.0, 5), (8, 4.0, 10)])
def test_divergences_of_a_sum_are_those_of_a_gaussian_at_most(
    parts: int, deviation: float, shift: int
) -> None:
    """Rényi divergences, added up over all places: α Δ²/2mσ², and all but that."""
    without, with_it = shifted(sum_of(parts, deviation), shift)
    there = (without > 0) & (with_it > 0)
    for order in (1.5, 2, 4, 8):
        logs = order * np.log(with_it[there]) - (order - 1) * np.log(without[there])
        found = math.log(np.exp(logs).sum()) / (order - 1)
        bound = order * shift**2 / (2 * parts * deviation**2)
        assert 0.99 * bound < found <= bound * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("sampled", [1.0, 0.3])
@pytest.mark.parametrize(
    ("parts", "deviation", "shift"), [(1, 12.0, 6), (5, 4.0, 7), (4, 16.0, 40)]
)
def test_what_a_sum_costs_is_within_what_the_accountant_says(
    parts: int, deviation: float, shift: int, sampled: float
) -> None:
    """δ at the accountant's ε, by its definition over all places; the shift is an integer."""
    pytest.importorskip("dp_accounting")
    without, with_it = shifted(sum_of(parts, deviation), shift)
    with_it = sampled * with_it + (1 - sampled) * without
    noise = math.sqrt(parts * deviation**2 - 4) / shift
    for delta in (1e-3, 1e-5):
        most = math.exp(epsilon(Counter({Release(sampled, 1): 1}), noise, delta))
        worst = max(
            float(np.maximum(one - most * other, 0).sum())
            for one, other in ((with_it, without), (without, with_it))
        )
        assert 0.2 * delta < worst <= delta


def test_a_rounded_gaussian_is_the_discrete_one() -> None:
    """A continuous one of variance σ² − 4, rounded to z with weights exp(−(z − x)²/8)."""
    deviation, cells = 6.0, 400
    places = np.arange(-60, 61)
    values = np.arange(-60 * cells, 60 * cells) / cells + 0.5 / cells
    weights = np.exp(-((places[:, None] - values) ** 2) / 8)
    rounded = weights / weights.sum(axis=0)
    found = rounded @ (norm.pdf(values, scale=math.sqrt(deviation**2 - 4)) / cells)
    middle = slice(30, 91)
    expected = pmf_of(deviation, 60)
    assert found[middle] == pytest.approx(expected[middle], rel=1e-9)
