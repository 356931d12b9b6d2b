"""What travels in a synchronised step.

A step is a few trips. What goes down is what all clients' sums came to since the trip before; what
comes up is all that a client can work out from it.
"""

from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ccfcpp.engine.exchange import Exchange, PerImage
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Descent:
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
    def descent(self) -> Descent | None:
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


def trips(
    name: str, count: int, uses_memory: bool = False, per_image: PerImage | None = None
) -> list[Exchange[Known, Contribution]]:
    """The exchanges of a step.

    Args:
        name: What steps are called.
        count: Trips of the longest step.
        uses_memory: Whether clients need what they remember, which is so in the first trip alone.
        per_image: How images enter the sums, where each one's part is bounded.
    """
    return [
        Exchange(
            f"{name}, trip {number + 1}",
            Known,
            Contribution,
            uses_memory=uses_memory and number == 0,
            summed=True,
            per_image=per_image,
            follows=number > 0,
        )
        for number in range(count)
    ]
