"""What travels in a synchronised step.

A step is a few trips. What goes down is what all clients' sums came to since the trip before; what
comes up is all that a client can work out from it.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ccfcpp.engine.parts import Sum
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class DescentState:
    """What the server keeps of a descent besides the model.

    Attributes:
        steps: How many steps were made.
        first: First moments of the optimizer, by parameter.
        second: Second moments, of the parameters that have them.
        totals: Pooled sums of the step that is under way, by name; of the lagged ones those of the
            step before.
        slopes: Pooled gradients at them, likewise.
        figures: What the last step reported, float64 scalars by name.
    """

    steps: int
    first: ModelState
    second: ModelState
    totals: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)


class DescendingState(Protocol):
    """A system's state that holds a model in descent."""

    @property
    def model(self) -> ModelState:
        """The model that moves."""

    @property
    def version(self) -> int:
        """How often the model has changed."""

    @property
    def descent(self) -> DescentState | None:
        """How far the descent is; None where there is none."""


D = TypeVar("D", bound=DescendingState)


@dataclass(frozen=True)
class Known:
    """What goes down in a trip.

    Attributes:
        version: How often the model has changed.
        model: In the first trip of a step: the model.
        totals: Pooled sums that clients do not know yet, by name.
        slopes: Pooled gradients at sums that clients do not know yet, by name.
    """

    version: int
    model: ModelState = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution:
    """What comes up in a trip: parts of sums over all clients.

    Attributes:
        sums: A client's part of each sum, float64, by name.
        slopes: Its part of the gradient at each pooled sum, float64, by name.
        gradient: In the last trip: its part of the gradient, by parameter.
        figures: In the last trip: its part of what the report says, float64 scalars by name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)
    gradient: ModelState = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)


PARTS = {
    "sums": Sum(each=True, statistic=True),
    "slopes": Sum(each=True, of_batch=True),
    "gradient": Sum(of_batch=True),
    "figures": Sum(of_batch=True, report=True),
}
"""What the parts of a contribution mean."""


def nothing_of(contribution: Contribution) -> Contribution:
    """What a client without a sample in this step adds: zeros."""
    return Contribution(
        *(
            {name: torch.zeros_like(part) for name, part in parts.items()}
            for parts in (
                contribution.sums,
                contribution.slopes,
                contribution.gradient,
                contribution.figures,
            )
        )
    )


def narrowed(gradient: ModelState, precision: torch.dtype | None) -> ModelState:
    """A gradient as it travels."""
    if precision is None:
        return gradient
    return {name: part.to(precision) for name, part in gradient.items()}
