"""Secret sharing: a threshold of shares recovers the secret, and fewer reveal nothing.

Source: Shamir, *How to Share a Secret* (1979). A secret is cut into numbers of 16 bits; each is the
value at 0 of a random polynomial of degree t − 1 over the field of 65,537 elements, and holder i
gets the values at i.
"""

import math
import secrets
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PRIME = 65_537
_LIMB = np.dtype("<u2")
_DRAW = np.dtype("<u4")

SHARE_PER_BYTE = _DRAW.itemsize // _LIMB.itemsize
"""Length of a share divided by that of its secret: 16 bits become a value of 32 bits."""


def split_secret(secret: bytes, holders: int, threshold: int) -> list[bytes]:
    """Split a secret into shares, one for each holder.

    Args:
        secret: An even number of bytes.
        holders: Number of shares, below 65,537. Share i is the polynomial's value at i + 1.
        threshold: Number of shares that recover the secret.

    Raises:
        ValueError: The threshold is above the number of holders, or these are too many.
    """
    if not 1 <= threshold <= holders < PRIME:
        raise ValueError(f"{threshold} of {holders} shares cannot be asked for")
    limbs = np.frombuffer(secret, _LIMB).astype(np.float64)
    coefficients = np.vstack([limbs, _random((threshold - 1, len(limbs)))])
    numbers = np.arange(1, holders + 1, dtype=np.int64)
    # Products of numbers below 2¹⁷, up to 2¹⁶ of them: float64 adds them up exactly below 2⁵³.
    values = _powers(numbers, threshold).astype(np.float64) @ coefficients
    return [row.tobytes() for row in (values % PRIME).astype(_DRAW)]


def join_shares(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """Recover a secret from its shares.

    Args:
        shares: Shares by their index in the result of ``split_secret``, at least ``threshold``.
        threshold: Number of shares that are needed.

    Raises:
        ValueError: There are too few shares, or they do not fit each other. With more shares than
            the threshold, a wrong one goes unnoticed with a probability of 1 in 65,537.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares of the {threshold} that are needed")
    places = sorted(shares)
    values = np.stack([np.frombuffer(shares[place], _DRAW) for place in places]).astype(np.float64)
    weights, checks = _weights(tuple(place + 1 for place in places), threshold)
    limbs = (weights @ values[:threshold]) % PRIME
    if (limbs >= 1 << 16).any() or ((checks @ values) % PRIME).any():
        raise ValueError("they are shares of no secret")
    return limbs.astype(_LIMB).tobytes()


def is_share(share: bytes) -> bool:
    """Return whether all values of a share are below ``PRIME``."""
    return bool((np.frombuffer(share, _DRAW) < PRIME).all())


def _random(shape: tuple[int, int]) -> NDArray[np.float64]:
    """Draw independent uniform integers from 0 to ``PRIME`` − 1, as float64."""
    wanted = shape[0] * shape[1]
    found = np.empty(0, dtype=_DRAW)
    while len(found) < wanted:
        drawn = np.frombuffer(secrets.token_bytes(4 * (wanted - len(found))), _DRAW)
        # 2³² − 1 is a multiple of the prime: without the last number remainders are equally likely.
        found = np.concatenate([found, drawn[drawn != 2**32 - 1]])
    return (found % PRIME).astype(np.float64).reshape(shape)


def _powers(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Compute each number's powers 0 to ``count`` − 1 modulo the prime: (numbers, count)."""
    powers = np.ones((len(numbers), count), dtype=np.int64)
    for exponent in range(1, count):
        powers[:, exponent] = powers[:, exponent - 1] * numbers % PRIME
    return powers


@lru_cache
def _weights(
    numbers: tuple[int, ...], threshold: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute weights with which shares sum to the secret, and weights with which they sum to 0.

    The first are Lagrange's weights for the value at 0. The others are the numbers
    f(x_i) / Π_j (x_i − x_j) with a random polynomial f of degree n − t − 1: their products with
    the values of any polynomial of degree t − 1 add up to 0 (Cascudo and David, *SCRAPE*, 2017).

    Args:
        numbers: Positions of the n shares' values, at least as many as the threshold.
        threshold: t, the number of shares that recover the secret.

    Returns:
        Arrays of shapes (threshold,) and (n,).
    """
    first = numbers[:threshold]
    whole = math.prod(first)
    weights = [
        whole * pow(own * far, -1, PRIME) % PRIME for own, far in _lagrange_denominators(first)
    ]
    checks, spare = np.zeros(len(numbers)), len(numbers) - threshold
    if spare > 0:
        places = np.array(numbers, np.int64)
        polynomial = (_powers(places, spare) @ _random((spare, 1)))[:, 0] % PRIME
        inverses = np.array(
            [pow(far, -1, PRIME) for _, far in _lagrange_denominators(numbers)], np.int64
        )
        checks = (polynomial.astype(np.int64) * inverses % PRIME).astype(np.float64)
    return np.array(weights, np.float64), checks


def _lagrange_denominators(numbers: tuple[int, ...]) -> list[tuple[int, int]]:
    """Pair each x with ∏(y − x) over the other numbers y, the Lagrange denominators."""
    return [(own, math.prod(n - own for n in numbers if n != own)) for own in numbers]
