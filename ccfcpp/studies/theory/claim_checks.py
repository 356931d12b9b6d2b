"""Simulated paths of singular values, the papers' statements on them, and the verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor

from ccfcpp.studies.theory.networks import (
    Drive,
    SplitNetwork,
    depth_offsets,
    flow,
    paired_vectors,
    theorem_rates,
)

Row = dict[str, object]
Verdict = Literal["holds", "roughly", "fails"]
HOLDS, ROUGHLY = 1e-4, 0.1
"""Relative errors up to which an equation holds, or holds roughly."""
_RESOLUTION = 1e-7
"""Two difference quotients that differ by a larger share do not resolve the path."""


@dataclass(frozen=True)
class Simulation:
    """A path of gradient flow, and the rates of its singular values, measured on the path alone.

    Attributes:
        start: The network at time 0.
        network: The network at the inner times: layers (times, …, width after, width before).
        times: Shape (times,).
        values: The encoder's singular values, of shape (times, …, k).
        rates: dσ_k/dt by differences of order four, of the same shape.
        resolved: Whether steps twice as long give the same rates, bool of shape (times, …). If
            two singular values almost meet, they change faster than a fixed step can follow.
    """

    start: SplitNetwork
    network: SplitNetwork
    times: Tensor
    values: Tensor
    rates: Tensor
    resolved: Tensor

    def theorem(self, driving: Tensor, head_depth: int = 1) -> Tensor:
        """Return ``theorem_rates`` along the path, with M_k of its start."""
        return theorem_rates(
            self.network, depth_offsets(self.start, head_depth), driving, head_depth
        )


def simulate(start: SplitNetwork, drive: Drive, step: float, steps: int) -> Simulation:
    """Simulate gradient flow from a start, for at least 8 steps."""
    path = flow(start, drive, step, steps)
    values = paired_vectors(path).values
    fine, coarse = central_differences(values, step), central_differences(values[::2], 2 * step)
    # The coarse quotients stand at every second time, from the fifth on: compare them there.
    at_both = fine[2::2][: len(coarse)]
    error = (at_both - coarse).norm(dim=-1) / at_both.norm(dim=-1)
    inner = slice(4, 4 + 2 * len(coarse), 2)
    return Simulation(
        start,
        path.at_times(inner),
        step * torch.arange(len(values), dtype=torch.float64)[inner],
        values[inner],
        at_both,
        error < _RESOLUTION * 16,  # the coarse quotient's own error is 16 times as large
    )


def central_differences(values: Tensor, step: float) -> Tensor:
    """Return d/dt by central differences of order four.

    Values of shape (times, …) give (times − 4, …), without the first two times and the last two.
    """
    assert len(values) >= 5, f"a difference of order four needs five times, not {len(values)}"
    near, far = values[3:-1] - values[1:-3], values[4:] - values[:-4]
    return (8 * near - far) / (12 * step)


def relative_error(predicted: Tensor, simulation: Simulation) -> float:
    """Return ‖predicted − simulated‖ / ‖simulated‖ over all resolved rates; NaN if there are none.

    ``predicted`` is dσ_k/dt of a formula, of the shape of ``simulation.rates``.
    """
    simulated = simulation.rates[simulation.resolved]
    return float((predicted[simulation.resolved] - simulated).norm() / simulated.norm())


def path_rows(paths: Sequence[Simulation], formulas: Mapping[str, Sequence[Tensor]]) -> list[Row]:
    """Tabulate singular values and rates of each path's first network, at every fourth time.

    ``formulas`` maps a name to its dσ_k/dt along each path. Tensors have the leading axes (times,
    clients, draws).
    """
    return [
        {
            "layers_of_encoder": path.start.depth,
            "time": float(path.times[at]),
            "k": k + 1,
            "singular_value": float(path.values[at, 0, 0, k]),
            "simulated_rate": float(path.rates[at, 0, 0, k]),
            **{name: float(rates[number][at, 0, 0, k]) for name, rates in formulas.items()},
            "resolved": bool(path.resolved[at, 0, 0]),
        }
        for number, path in enumerate(paths)
        for at in range(0, len(path.times), 4)
        for k in range(path.values.shape[-1])
    ]


@dataclass(frozen=True)
class Statement:
    """A numeric prediction of a theorem, described by ``text``, beside the simulated number.

    Attributes:
        predicted: The predicted number; with the relation ``<`` a bound.
        simulated: The simulated number.
        relation: ``=``, or ``<`` if the papers say only that something is smaller.
        relative_error: The error of ``=``; None for ``<``.
    """

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


def equal(text: str, predicted: float, simulated: float, error: float | None = None) -> Statement:
    """State that two numbers are equal; by default the error is relative to the simulated one."""
    error = abs(predicted - simulated) / abs(simulated) if error is None else error
    return Statement(text, predicted, simulated, "=", error)


def smaller(text: str, bound: float, simulated: float) -> Statement:
    """State that a number is smaller than another."""
    return Statement(text, bound, simulated, "<")


def about_rates(text: str, predicted: Tensor, simulation: Simulation) -> Statement:
    """State a formula for dσ_k/dt, with the numbers of the fastest k, half-way.

    ``predicted`` has the shape of ``simulation.rates``.
    """
    middle = len(simulation.rates) // 2
    simulated = simulation.rates[middle].flatten()
    fastest = int(simulated.abs().argmax())
    shown = float(predicted[middle].flatten()[fastest])
    return equal(text, shown, float(simulated[fastest]), relative_error(predicted, simulation))


def worst(statements: Sequence[Statement]) -> Statement:
    """Return the statement with the largest error, of several settings."""
    return max(statements, key=lambda each: each.relative_error or 0.0)


def worst_rates(text: str, predicted: Sequence[Tensor], paths: Sequence[Simulation]) -> Statement:
    """State a formula for dσ_k/dt, for the depth of encoder at which its error is largest."""
    text += " = 1, 2, 3"
    return worst([about_rates(text, *each) for each in zip(predicted, paths, strict=True)])
