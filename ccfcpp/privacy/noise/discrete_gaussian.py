"""Exact draws from the discrete Gaussian, by integer arithmetic on uniform random bits.

Source: Canonne, Kamath and Steinke, *The Discrete Gaussian for Differential Privacy* (NeurIPS
2020), Algorithms 1 to 3, here for many numbers side by side. No floating-point number is involved,
which rules out the attack of Mironov (CCS 2012) on the low bits of noise.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.metrics import Integers

Flags = NDArray[np.bool_]
UniformWords = Callable[[int], NDArray[np.uint64]]
"""Function that returns a given number of independent uniform 64-bit words."""

_WORD = 64
_MOST_EXPONENT = 24
_AT_A_TIME = 1 << 15
"""Most numbers that are drawn side by side, so that they stay in the processor's cache."""


def discrete_normal(numbers: int, exponent: int, words: UniformWords) -> Integers:
    """Draw from the discrete Gaussian: P(x) is proportional to exp(−x²/2s²), s = 2^exponent.

    Args:
        numbers: Number of draws.
        exponent: log₂ s, 0 to 24. The square of a draw fits int64 up to 180 s; more has a
            probability of exp(−180).
        words: Function that returns a given number of uniform random 64-bit words.

    Returns:
        int64 of shape (numbers,).
    """
    if not 0 <= exponent <= _MOST_EXPONENT:
        raise ValueError(f"exponent {exponent} is not within 0 and {_MOST_EXPONENT}")
    draws: list[Integers] = [np.empty(0, np.int64)]
    left = numbers
    while left > 0:
        # About half of the candidates are accepted.
        accepted = _draw_accepted(min(_AT_A_TIME, 2 * left + 64), exponent, words)[:left]
        draws.append(accepted)
        left -= len(accepted)
    return np.concatenate(draws)


def _draw_accepted(candidates: int, exponent: int, words: UniformWords) -> Integers:
    """Draw candidates for rejection sampling; return the accepted (Algorithms 2 and 3, t = s)."""
    scale = 1 << exponent
    # The discrete Laplace distribution: |x| = u + s v, with weight exp(−|x|/s).
    drawn = words(candidates)
    below = _top_bits(drawn, exponent)
    # The lowest bit is not among those of u.
    signs = (drawn & np.uint64(1)).astype(np.int64)
    taken = _draw_exponential(below, exponent, words)
    below, signs = below[taken], signs[taken]
    sizes = below + scale * _count_successes(len(below), words)
    # Zero would be drawn twice, as 0 and −0.
    taken = (sizes > 0) | (signs == 0)
    sizes, signs = sizes[taken], signs[taken]
    # Accepted with probability exp(−(|x| − s)²/2s²): the exponent's integer part, and the rest.
    squares, bits = (sizes - scale) ** 2, 2 * exponent + 1
    whole, rest = squares >> bits, squares & ((1 << bits) - 1)
    taken = _draw_exponential(rest, bits, words)
    far = np.flatnonzero(taken & (whole > 0))
    taken[far] = _count_successes(len(far), words) >= whole[far]
    accepted: Integers = np.where(signs == 1, -sizes, sizes)[taken]
    return accepted


def _count_successes(numbers: int, words: UniformWords) -> Integers:
    """Draw ``numbers`` counts of successes, each of probability 1/e, before the first failure."""
    counts = np.zeros(numbers, np.int64)
    active = np.arange(numbers)
    while len(active):
        active = active[_draw_exponential(np.ones(len(active), np.int64), 0, words)]
        counts[active] += 1
    return counts


def _draw_exponential(numerators: Integers, bits: int, words: UniformWords) -> Flags:
    """Draw booleans, True with probability exp(−γ), γ = numerators/2^bits ≤ 1 (Algorithm 1).

    Events of probability γ/1, γ/2, γ/3, … are drawn until one of them fails; its place is odd with
    probability exp(−γ).
    """
    odd = np.zeros(len(numerators), np.bool_)
    active = np.arange(len(numerators))
    place = 1
    while len(active):
        odd[active] = place % 2 == 1
        # For γ = 0 or 1 nothing needs to be drawn.
        drawn = _top_bits(words(len(active)), bits) if bits else 0
        active = active[drawn < numerators[active]]
        if place > 1:
            active = active[_draw_below(place, len(active), words) == 0]
        place += 1
    return odd


def _top_bits(drawn: NDArray[np.uint64], bits: int) -> Integers:
    """Return the highest ``bits`` (at most 63) of each word as an integer."""
    # A shift by all 64 bits is not defined.
    return (drawn >> np.uint64(1) >> np.uint64(_WORD - 1 - bits)).astype(np.int64)


def _draw_below(bound: int, numbers: int, words: UniformWords) -> NDArray[Any]:
    """Draw ``numbers`` uniform integers from 0 to ``bound`` − 1, uint64."""
    most = np.uint64((1 << _WORD) - (1 << _WORD) % bound - 1)
    drawn = words(numbers)
    while len(again := np.flatnonzero(drawn > most)):
        drawn[again] = words(len(again))
    return drawn % np.uint64(bound)
