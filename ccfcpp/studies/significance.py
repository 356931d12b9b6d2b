"""Significance tests of differences between cells of a study, over seeds."""

import itertools
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from ccfcpp.runs.paths import Json

LEVEL = 0.05
"""Probability of a chance difference below which one is marked."""
FEWEST = 3
"""Pairs of runs with the same seed that a test needs."""
MARK = "*"
Name = TypeVar("Name", bound=Hashable)
BySeed = Mapping[int, float]
"""A score of a cell by seed."""


def by_seed(summaries: Sequence[Json], measure: str) -> dict[int, float]:
    """Return a measure of a cell's runs, by seed."""
    return {
        summary["seed"]: summary[measure]
        for summary in summaries
        if summary.get(measure) is not None and "seed" in summary
    }


def paired_t(first: BySeed, second: BySeed) -> float | None:
    """Return the p-value of the two-sided paired t-test over the seeds that both have.

    Source: Student 1908, *The Probable Error of a Mean*. None if fewer than ``FEWEST`` seeds are
    shared. If all differences are the same, it is 1 if they are 0, and 0 else.
    """
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < FEWEST:
        return None
    # Imported here, where it is needed: commands start faster without it.
    from scipy.stats import ttest_rel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the differences may all be the same
        p = float(ttest_rel(*([own[seed] for seed in seeds] for own in (first, second))).pvalue)
    return 1.0 if math.isnan(p) else p


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Correct the p-values of several tests, so that one false finding is as rare as in one test.

    Source: Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*.
    """
    ascending = sorted(p_values, key=p_values.__getitem__)
    raised = (min(1.0, (len(ascending) - n) * p_values[name]) for n, name in enumerate(ascending))
    corrected = dict(zip(ascending, itertools.accumulate(raised, max), strict=True))
    return {name: corrected[name] for name in p_values}


def corrected_p_values(cells: Mapping[Name, BySeed], reference: Name) -> dict[Name, float]:
    """Return the corrected p-value of each cell that can be compared with another one, by name."""
    found = {
        name: p
        for name, own in cells.items()
        if name != reference and (p := paired_t(own, cells[reference])) is not None
    }
    return holm(found)


def caption(reference: str) -> str:
    """Explain the mark in a table; ``reference`` is what cells are compared with."""
    return (
        f"{MARK} differs from {reference} (paired t-test over seeds, Holm's correction, "
        f"p < {LEVEL:g})"
    )
