"""Simulated gradient flow, the theorems' statements on singular values, and their verdicts."""

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
HOLDS, ROUGHLY = 1e-4, 0.1
"""Relative errors up to which an equation holds, or holds roughly."""
_RESOLUTION = 1e-7
"""Largest relative difference of two difference quotients that resolve the path."""


@dataclass(frozen=True)
class Simulation:
    """Simulated path of gradient flow, with numerical derivatives of its singular values.

    Attributes:
        start: The network at time 0.
        network: The network at ``times``: layers of shape (times, …, width after, width before).
        times: float64 of shape (times,).
        values: The encoder's singular values σ_k, of shape (times, …, k).
        rates: dσ_k/dt by central differences of order four, of the same shape.
        resolved: Whether differences of twice the step give the same rates, bool of shape (times,
            …). They do not if two singular values almost meet, and change too fast for the step.
    """

    start: SplitNetwork
    network: SplitNetwork
    times: Tensor
    values: Tensor
    rates: Tensor
    resolved: Tensor

    def theorem(self, driving: Tensor, head_depth: int = 1) -> Tensor:
        """Return the theorems' dσ_k/dt along the path (``theorem_rates``), with M_k from time 0.

        ``driving`` is the loss's negative gradient B, ``head_depth`` the head's number of layers.
        """
        return theorem_rates(
            self.network, depth_offsets(self.start, head_depth), driving, head_depth
        )


def simulate(start: SplitNetwork, drive: Drive, step: float, steps: int) -> Simulation:
    """Simulate gradient flow from ``start``, for 8 or more steps of size ``step``.

    ``drive`` gives a network's negative gradient of the loss by the product of all its layers.
    """
    path = flow(start, drive, step, steps)
    values = paired_vectors(path).values
    fine, coarse = central_differences(values, step), central_differences(values[::2], 2 * step)
    # Coarse quotients exist at every second time from the fifth on: compare both there.
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
    """Return d/dt of values at equal steps by central differences of order four.

    The result for values of shape (times, …) is (times − 4, …): the first two and last two times
    have none.
    """
    assert len(values) >= 5, f"a difference of order four needs five times, not {len(values)}"
    near, far = values[3:-1] - values[1:-3], values[4:] - values[:-4]
    return (8 * near - far) / (12 * step)


def relative_error(predicted: Tensor, simulation: Simulation) -> float:
    """Return ‖predicted − simulated‖ / ‖simulated‖ of dσ_k/dt where resolved; NaN if nowhere.

    ``predicted`` has the shape of ``simulation.rates``.
    """
    simulated = simulation.rates[simulation.resolved]
    return float((predicted[simulation.resolved] - simulated).norm() / simulated.norm())


def path_rows(paths: Sequence[Simulation], formulas: Mapping[str, Sequence[Tensor]]) -> list[Row]:
    """Tabulate singular values σ_k and dσ_k/dt of each path's first network, at every fourth time.

    ``formulas`` maps a formula's name to its dσ_k/dt along each path. Tensors have the leading axes
    (times, clients, draws).
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
    """A theorem's prediction of a number, compared with a simulation.

    Attributes:
        text: Description of the number.
        predicted: The predicted number; an upper bound if the relation is ``<``.
        simulated: The simulated number.
        relation: ``=``, or ``<`` if the papers only say that a number is smaller.
        relative_error: Relative error of the prediction; None if the relation is ``<``.
    """

    text: str
    predicted: float
    simulated: float
    relation: Literal["=", "<"] = "="
    relative_error: float | None = None

    @property
    def verdict(self) -> Literal["holds", "roughly", "fails"]:
        """``holds`` (relative error up to 1e-4), ``roughly`` (up to 0.1) or ``fails``."""
        if self.relation == "<":
            return "holds" if self.simulated < self.predicted else "fails"
        # An error of NaN, which could not be computed, fails: comparisons with NaN are false.
        error = math.nan if self.relative_error is None else self.relative_error
        return "holds" if error <= HOLDS else "roughly" if error <= ROUGHLY else "fails"

    def as_json(self) -> Row:
        """Return all fields and the verdict as a dict."""
        return {**asdict(self), "verdict": self.verdict}


def equal(text: str, predicted: float, simulated: float, error: float | None = None) -> Statement:
    """Return the statement ``text``: that ``predicted`` equals ``simulated``.

    ``error`` is its relative error; by default |predicted − simulated| / |simulated|.
    """
    error = abs(predicted - simulated) / abs(simulated) if error is None else error
    return Statement(text, predicted, simulated, "=", error)


def smaller(text: str, bound: float, simulated: float) -> Statement:
    """Return the statement ``text``: that ``simulated`` is smaller than ``bound``."""
    return Statement(text, bound, simulated, "<")


def about_rates(text: str, predicted: Tensor, simulation: Simulation) -> Statement:
    """Return the statement ``text``: that a formula's dσ_k/dt (``predicted``) are the simulated.

    Its error is that of all rates; the numbers shown are of the fastest k at half of the time.
    """
    middle = len(simulation.rates) // 2
    simulated = simulation.rates[middle].flatten()
    fastest = int(simulated.abs().argmax())
    shown = float(predicted[middle].flatten()[fastest])
    return equal(text, shown, float(simulated[fastest]), relative_error(predicted, simulation))


def worst(statements: Sequence[Statement]) -> Statement:
    """Return the statement with the largest relative error."""
    return max(statements, key=lambda each: each.relative_error or 0.0)


def worst_rates(text: str, predicted: Sequence[Tensor], paths: Sequence[Simulation]) -> Statement:
    """Return the ``about_rates`` of the path with the largest error, of three (depths 1, 2, 3)."""
    text += " = 1, 2, 3"
    return worst([about_rates(text, *each) for each in zip(predicted, paths, strict=True)])
