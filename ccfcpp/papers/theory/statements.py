"""What the papers say, what a simulation says, and the verdict that follows from the two."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from torch import Tensor

from ccfcpp.papers.theory.simulation import Row, Simulation, relative_error

Verdict = Literal["holds", "roughly", "fails"]

HOLDS, ROUGHLY = 1e-4, 0.1
"""Relative errors up to which an equation holds, or holds roughly."""


@dataclass(frozen=True)
class Statement:
    """One statement, ``text``, of a theorem beside its simulation.

    Attributes:
        predicted: The number that it predicts; with the relation ``<`` a bound.
        simulated: The number that came out.
        relation: ``=``, or ``<`` where the papers say only that something is smaller.
        relative_error: The error of ``=``; None for ``<``.
    """

    subject: str
    text: str
    predicted: float
    simulated: float
    relation: Literal["=", "<"] = "="
    relative_error: float | None = None

    @property
    def verdict(self) -> Verdict:
        """``holds``, ``roughly`` (a relative error up to a tenth) or ``fails``."""
        if self.relation == "<":
            return "holds" if self.simulated < self.predicted else "fails"
        # A comparison with NaN is false: what could not be computed does not hold.
        error = math.nan if self.relative_error is None else self.relative_error
        return "holds" if error <= HOLDS else "roughly" if error <= ROUGHLY else "fails"

    def as_json(self) -> Row:
        """Return all fields and the verdict."""
        return {**asdict(self), "verdict": self.verdict}


def equal(
    subject: str, text: str, predicted: float, simulated: float, error: float | None = None
) -> Statement:
    """State that a number is another one.

    The error is relative to the simulated number, unless it is given.
    """
    if error is None:
        error = abs(predicted - simulated) / abs(simulated)
    return Statement(subject, text, predicted, simulated, "=", error)


def smaller(subject: str, text: str, bound: float, simulated: float) -> Statement:
    """State that a number lies below another."""
    return Statement(subject, text, bound, simulated, "<")


def about_rates(subject: str, text: str, predicted: Tensor, simulation: Simulation) -> Statement:
    """State a formula for dσ_k/dt, and show the numbers of the fastest k, half-way.

    ``predicted`` has the shape of ``simulation.rates``.
    """
    middle = len(simulation.rates) // 2
    simulated = simulation.rates[middle].flatten()
    fastest = int(simulated.abs().argmax())
    shown = float(predicted[middle].flatten()[fastest])
    error = relative_error(predicted, simulation)
    return equal(subject, text, shown, float(simulated[fastest]), error)


def worst(statements: list[Statement]) -> Statement:
    """Return that one which is farthest off, of the same statement in several settings."""
    return max(statements, key=lambda each: each.relative_error or 0.0)


def worst_rates(
    subject: str, text: str, predicted: Sequence[Tensor], paths: Sequence[Simulation]
) -> Statement:
    """State a formula for dσ_k/dt at encoders of one, two and three layers, where it is worst."""
    pairs = zip(predicted, paths, strict=True)
    return worst([about_rates(subject, f"{text} = 1, 2, 3", *pair) for pair in pairs])
