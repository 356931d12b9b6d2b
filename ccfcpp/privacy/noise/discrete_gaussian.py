"""The discrete Gaussian, drawn exactly: integer arithmetic on uniform bits, and nothing rounded.

Source: Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy* (NeurIPS
2020), Algorithms 1 to 3, here for many numbers side by side. No floating-point number is involved,
so that the attack of Mironov (CCS 2012) on the low bits of noise has nothing to work on.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.metrics import Integers

Flags = NDArray[np.bool_]
UniformWords = Callable[[int], NDArray[np.uint64]]
"""Gives so many independent uniform words of 64 bits."""

_WORD = 64
_MOST_EXPONENT = 24
_AT_A_TIME = 1 << 15
"""Numbers that are drawn side by side: they stay in the processor's cache."""


def discrete_normal(numbers: int, exponent: int, words: UniformWords) -> Integers:
    """Draw from the discrete Gaussian: P(x) is proportional to exp(−x²/2s²), s = 2^exponent.

    Args:
        numbers: Number of draws.
        exponent: log₂ s, 0 to 24. The square of a draw fits int64 up to 180 s; more has a
            probability of exp(−180).
        words: The source of randomness.

    Returns:
        int64 of shape (numbers,).
    """
    if not 0 <= exponent <= _MOST_EXPONENT:
        raise ValueError(f"exponent {exponent} is not within 0 and {_MOST_EXPONENT}")
    found: list[Integers] = [np.empty(0, np.int64)]
    left = numbers
    while left > 0:
        # About half of the candidates are taken.
        accepted = _accepted(min(_AT_A_TIME, 2 * left + 64), exponent, words)[:left]
        found.append(accepted)
        left -= len(accepted)
    return np.concatenate(found)


def _accepted(candidates: int, exponent: int, words: UniformWords) -> Integers:
    """Draw candidates, and return those that are accepted (Algorithms 2 and 3, t = s)."""
    scale = 1 << exponent
    # The discrete Laplace distribution: |x| = u + s v, with weight exp(−|x|/s).
    drawn = words(candidates)
    below = _top(drawn, exponent)
    # The bottom bit is not among those of u.
    signs = (drawn & np.uint64(1)).astype(np.int64)
    taken = _is_exponential(below, exponent, words)
    below, signs = below[taken], signs[taken]
    sizes = below + scale * _successes(len(below), words)
    # Zero would be there twice.
    taken = (sizes > 0) | (signs == 0)
    sizes, signs = sizes[taken], signs[taken]
    # Accepted with exp(−(|x| − s)²/2s²): the whole part of the exponent, and the rest.
    squares, bits = (sizes - scale) ** 2, 2 * exponent + 1
    whole, rest = squares >> bits, squares & ((1 << bits) - 1)
    taken = _is_exponential(rest, bits, words)
    far = np.flatnonzero(taken & (whole > 0))
    taken[far] = _successes(len(far), words) >= whole[far]
    found: Integers = np.where(signs == 1, -sizes, sizes)[taken]
    return found


def _successes(numbers: int, words: UniformWords) -> Integers:
    """Draw how often an event of probability 1/e occurs before its first failure."""
    found = np.zeros(numbers, np.int64)
    active = np.arange(numbers)
    while len(active):
        active = active[_is_exponential(np.ones(len(active), np.int64), 0, words)]
        found[active] += 1
    return found


def _is_exponential(numerators: Integers, bits: int, words: UniformWords) -> Flags:
    """Draw events of probability exp(−γ), γ = numerators/2^bits at most 1 (Algorithm 1).

    Events of probability γ/1, γ/2, γ/3, … are drawn until one of them fails; its place is odd with
    probability exp(−γ).
    """
    odd = np.zeros(len(numerators), np.bool_)
    active = np.arange(len(numerators))
    place = 1
    while len(active):
        odd[active] = place % 2 == 1
        # Of γ = 0 or 1 nothing is drawn.
        drawn = _top(words(len(active)), bits) if bits else 0
        active = active[drawn < numerators[active]]
        if place > 1:
            active = active[_below(place, len(active), words) == 0]
        place += 1
    return odd


def _top(drawn: NDArray[np.uint64], bits: int) -> Integers:
    """Return the first bits of words, at most 63, as integers."""
    # A shift by all 64 bits is not defined.
    return (drawn >> np.uint64(1) >> np.uint64(_WORD - 1 - bits)).astype(np.int64)


def _below(bound: int, numbers: int, words: UniformWords) -> NDArray[Any]:
    """Draw uniform integers from 0 to ``bound`` − 1."""
    most = np.uint64((1 << _WORD) - (1 << _WORD) % bound - 1)
    drawn = words(numbers)
    while len(again := np.flatnonzero(drawn > most)):
        drawn[again] = words(len(again))
    return drawn % np.uint64(bound)
