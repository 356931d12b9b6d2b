"""Secrets in shares, of which a threshold gives the secret and fewer give nothing.

Source: Shamir, *How to Share a Secret* (1979). A secret is cut into numbers of 16 bits; each is the
value at 0 of a random polynomial of degree t − 1 over the field of 65,537 elements, and holder i
gets the values at i.
"""

import secrets
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

PRIME = 65_537
_LIMB = np.dtype("<u2")
_DRAW = np.dtype("<u4")

Share = NDArray[np.uint32]
"""Of shape (limbs,): one holder's values."""


def split(secret: bytes, holders: int, threshold: int) -> NDArray[np.uint32]:
    """The shares of a secret.

    Args:
        secret: Bytes, an even number of them.
        holders: How many shares, below 65,537. Holder i has the number i + 1.
        threshold: How many of them give the secret.

    Returns:
        Of shape (holders, limbs).

    Raises:
        ValueError: The threshold is above the number of holders, or there are too many of these.
    """
    if not 1 <= threshold <= holders < PRIME:
        raise ValueError(f"{threshold} of {holders} shares cannot be asked for")
    limbs = np.frombuffer(secret, _LIMB).astype(np.float64)
    coefficients = np.vstack([limbs, _random((threshold - 1, len(limbs)))])
    numbers = np.arange(1, holders + 1, dtype=np.int64)
    # Products of numbers below 2¹⁷, up to 2¹⁶ of them: float64 adds them up exactly below 2⁵³.
    values = _powers(numbers, threshold).astype(np.float64) @ coefficients
    return (values % PRIME).astype(np.uint32)


def joined(shares: Mapping[int, Share], threshold: int) -> bytes:
    """The secret of some shares.

    Args:
        shares: By the holder's place, from 0; a threshold of them at least.
        threshold: How many are needed.

    Raises:
        ValueError: There are too few, or they are shares of no secret.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares of the {threshold} that are needed")
    places = sorted(shares)[:threshold]
    weights = _at_zero(tuple(place + 1 for place in places))
    values = np.stack([shares[place] for place in places]).astype(np.float64)
    limbs = (np.array(weights, dtype=np.float64) @ values) % PRIME
    if (limbs >= 1 << 16).any():
        raise ValueError("they are shares of no secret")
    return limbs.astype(_LIMB).tobytes()


def _random(shape: tuple[int, int]) -> NDArray[np.float64]:
    """Independent uniform numbers below the prime."""
    wanted = shape[0] * shape[1]
    found = np.empty(0, dtype=_DRAW)
    while len(found) < wanted:
        drawn = np.frombuffer(secrets.token_bytes(4 * (wanted - len(found))), _DRAW)
        # 2³² − 1 is a multiple of the prime: without the last number all remainders are as likely.
        found = np.concatenate([found, drawn[drawn != 2**32 - 1]])
    return (found % PRIME).astype(np.float64).reshape(shape)


def _powers(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Powers from 0 on, modulo the prime, of shape (numbers, count)."""
    powers = np.ones((len(numbers), count), dtype=np.int64)
    for exponent in range(1, count):
        powers[:, exponent] = powers[:, exponent - 1] * numbers % PRIME
    return powers


@lru_cache
def _at_zero(numbers: tuple[int, ...]) -> list[int]:
    """Lagrange's weights, which give a polynomial's value at 0 from its values at these numbers."""
    weights = []
    for number in numbers:
        above = below = 1
        for other in numbers:
            if other != number:
                above = above * other % PRIME
                below = below * (other - number) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights
