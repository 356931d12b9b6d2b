from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability


@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 100))
def test_the_stated_share_is_disconnected(clients: int, rate: float, seed: int) -> None:
    availability, randomness = Availability(disconnection_rate=rate), Randomness(seed)
    expected = clients - floor(Fraction(str(rate)) * clients + Fraction(1, 2))
    if expected == 0:
        with pytest.raises(UsageError, match=f"disconnects all {clients} clients"):
            availability.connected(range(clients), randomness)
        return
    connected = availability.connected(range(clients), randomness)
    assert len(set(connected)) == expected
    assert connected == sorted(connected)
    assert set(connected) <= set(range(clients))
    reversed_order = availability.connected(range(clients)[::-1], randomness)
    assert connected == reversed_order


@pytest.mark.parametrize(
    ("rate", "clients", "absent"),
    [(0.25, 10, 3), (0.24, 10, 2), (0.35, 10, 4), (0.5, 5, 3), (0.15, 10, 2), (0.29, 50, 15)],
)
def test_half_a_client_is_disconnected_as_a_whole_one(
    rate: float, clients: int, absent: int
) -> None:
    """Python rounds halves to even numbers, and 0.29 · 50 in binary is less than 14.5."""
    left = Availability(disconnection_rate=rate).connected(range(clients), Randomness(0))
    assert clients - len(left) == absent


def test_disconnection_differs_from_seed_to_seed() -> None:
    availability = Availability(disconnection_rate=0.5)
    drawn = {tuple(availability.connected(range(10), Randomness(seed))) for seed in range(20)}
    assert len(drawn) > 10


def test_dropout_comes_at_its_rate_and_by_round() -> None:
    availability = Availability(dropout_rate=0.3)
    rounds = [availability.taking_part(range(10), Randomness(0, number)) for number in range(300)]
    present = sum(map(len, rounds)) / 3000
    assert present == pytest.approx(0.7, abs=0.04)  # five standard deviations
    assert len(set(map(tuple, rounds))) > 50


def test_a_round_may_be_without_clients() -> None:
    assert Availability(dropout_rate=1.0).taking_part(range(5), Randomness(0, 0)) == []


@given(st.integers(1, 20), st.floats(0.01, 1), st.integers(0, 50))
def test_the_server_samples_its_fraction(clients: int, fraction: float, seed: int) -> None:
    availability = Availability(sample_fraction=fraction)
    invited = availability.taking_part(range(clients), Randomness(seed, 3))
    assert len(invited) == floor(Fraction(str(fraction)) * clients + Fraction(1, 2))
    assert invited == availability.taking_part(range(clients)[::-1], Randomness(seed, 3))


@given(st.integers(1, 30), st.floats(0.001, 1))
def test_a_fraction_that_picks_nobody_is_refused(clients: int, fraction: float) -> None:
    availability = Availability(sample_fraction=fraction)
    if Fraction(str(fraction)) * clients >= Fraction(1, 2):
        assert len(availability.connected(range(clients), Randomness(0))) == clients
        return
    with pytest.raises(UsageError, match=r"sample_fraction = .* picks none of"):
        availability.connected(range(clients), Randomness(0))
