"""Significance tests between cells (combinations of settings) of a study, over seeds."""

import itertools
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from ccfcpp.runs.paths import Json

LEVEL = 0.05
"""Significance level: differences with a smaller p-value are marked."""
FEWEST = 3
"""Smallest number of seeds that a paired test needs."""
MARK = "*"
DIGITS = 12
"""Decimals of a score that count: by rounding errors, equal clusterings would differ, all seeds of
one by the same error even significantly."""
Name = TypeVar("Name", bound=Hashable)
BySeed = Mapping[int, float]
"""A cell's score, by seed."""


def by_seed(summaries: Sequence[Json], measure: str) -> dict[int, float]:
    """Map each seed of a cell's runs to its value, rounded, of a measure in ``summary.json``."""
    return {
        summary["seed"]: round(summary[measure], DIGITS)
        for summary in summaries
        if summary.get(measure) is not None and "seed" in summary
    }


def paired_t(first: BySeed, second: BySeed) -> float | None:
    """Return the p-value of the two-sided paired t-test over the seeds that both have.

    Source: Student 1908, *The Probable Error of a Mean*. It is None if fewer than ``FEWEST`` seeds
    are shared. If all differences are equal, it is 1 if they are 0, and else 0.
    """
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < FEWEST:
        return None
    # Imported here, so that commands start faster.
    from scipy.stats import ttest_rel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the differences may all be the same
        p = float(ttest_rel(*([own[seed] for seed in seeds] for own in (first, second))).pvalue)
    return 1.0 if math.isnan(p) else p


def holm(p_values: Mapping[Name, float]) -> dict[Name, float]:
    """Apply Holm's correction for multiple tests to p-values, which are given by name.

    Source: Holm 1979, *A Simple Sequentially Rejective Multiple Test Procedure*.
    """
    ascending = sorted(p_values, key=p_values.__getitem__)
    raised = (min(1.0, (len(ascending) - n) * p_values[name]) for n, name in enumerate(ascending))
    corrected = dict(zip(ascending, itertools.accumulate(raised, max), strict=True))
    return {name: corrected[name] for name in p_values}


def corrected_p_values(cells: Mapping[Name, BySeed], reference: Name) -> dict[Name, float]:
    """Test each cell against the cell ``reference``; return Holm-corrected p-values by name.

    Cells that share too few seeds with the reference are left out.
    """
    p_values = {
        name: p
        for name, own in cells.items()
        if name != reference and (p := paired_t(own, cells[reference])) is not None
    }
    return holm(p_values)


def caption(reference: str) -> str:
    """Explain the mark ``*`` in a table that compares its cells with ``reference``."""
    return (
        f"{MARK} differs from {reference} (paired t-test over seeds, Holm's correction, "
        f"p < {LEVEL:g})"
    )
