"""Shamir's shares beside polynomials over the integers, term by term."""

import secrets
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccfcpp.privacy.sums.secret_sharing import PRIME, join_shares, split_secret


def limbs(share: bytes) -> list[int]:
    return [int(value) for value in np.frombuffer(share, "<u4")]


def value_at_zero(points: list[tuple[int, int]]) -> int:
    """Lagrange's formula as it is written, over fractions modulo the prime."""
    total = 0
    for number, value in points:
        product = value
        for other, _ in points:
            if other != number:
                product = product * other * pow(other - number, PRIME - 2, PRIME) % PRIME
        total += product
    return total % PRIME


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.data())
def test_any_threshold_of_shares_gives_the_secret(holders: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, holders))
    secret = data.draw(st.binary(min_size=8, max_size=8))
    shares = split_secret(secret, holders, threshold)
    places = data.draw(st.sets(st.integers(0, holders - 1), min_size=threshold))
    assert join_shares({place: shares[place] for place in places}, threshold) == secret
    chosen = sorted(places)[:threshold]
    for limb, expected in enumerate(np.frombuffer(secret, "<u2")):
        points = [(place + 1, limbs(shares[place])[limb]) for place in chosen]
        assert value_at_zero(points) == expected


def test_shares_lie_on_a_polynomial_of_the_degree() -> None:
    shares = split_secret(secrets.token_bytes(4), holders=6, threshold=3)
    found = {
        value_at_zero([(place + 1, limbs(shares[place])[0]) for place in places])
        for places in combinations(range(6), 3)
    }
    assert len(found) == 1
    by_two = {
        value_at_zero([(place + 1, limbs(shares[place])[0]) for place in places])
        for places in combinations(range(6), 2)
    }
    assert len(by_two) > 1


def test_fewer_shares_are_equally_likely_whatever_the_secret() -> None:
    """Two of three shares of either secret take all values: a χ² test on 64 classes each."""
    for secret in (bytes(2), b"\xff\xff"):
        draws = np.array(
            [[limbs(each)[0] for each in split_secret(secret, 3, 3)[:2]] for _ in range(4000)]
        )
        for column in (*draws.T, (draws[:, 0].astype(int) + draws[:, 1]) % PRIME):
            counts = np.bincount(column.astype(int) * 64 // PRIME, minlength=64)
            chi_squared = float(((counts - 62.5) ** 2 / 62.5).sum())
            assert chi_squared < 150  # 63 degrees of freedom: about 10⁻⁸


def test_too_few_shares_are_refused() -> None:
    shares = split_secret(bytes(32), 5, 3)
    with pytest.raises(ValueError, match="2 shares of the 3"):
        join_shares({0: shares[0], 4: shares[4]}, 3)


@pytest.mark.parametrize(("holders", "threshold"), [(3, 4), (3, 0), (PRIME, 2)])
def test_thresholds_that_cannot_be(holders: int, threshold: int) -> None:
    with pytest.raises(ValueError, match="cannot be asked for"):
        split_secret(bytes(2), holders, threshold)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.data())
def test_a_wrong_share_among_more_than_a_threshold_is_noticed(
    holders: int, data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, holders - 1))
    shares = dict(enumerate(split_secret(secrets.token_bytes(32), holders, threshold)))
    wrong = data.draw(st.sampled_from(range(holders)))
    other = data.draw(st.integers(1, PRIME - 1))
    shares[wrong] = b"".join(
        ((x + other) % PRIME).to_bytes(4, "little") for x in limbs(shares[wrong])
    )
    with pytest.raises(ValueError, match="shares of no secret"):
        join_shares(shares, threshold)
