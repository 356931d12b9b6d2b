"""What a synchronised step is made of: what travels, what is shown, and what bounds it.

A step is a few trips. What goes down is what all clients' sums came to since the trip before; what
comes up is all that a client can work out from it.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import AnyExchange
from ccfcpp.engine.parts import Sum
from ccfcpp.models.pooled import Program
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
        parts: The last part that each client had in each pooled sum, by ``part_of``, and in how
            many steps it had one; of clients whose parts come one by one.
    """

    steps: int
    first: ModelState
    second: ModelState
    totals: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, Tensor] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Own(Contribution):
    """The contribution of a client that is known.

    Attributes:
        client: Its number.
    """

    client: int = -1


PARTS = {
    "sums": Sum(each=True, statistic=True),
    "slopes": Sum(each=True, of_batch=True),
    "gradient": Sum(of_batch=True),
    "figures": Sum(of_batch=True, report=True),
}
"""What the parts of a contribution mean."""


@dataclass(frozen=True)
class Batch:
    """What a process shows in a step.

    Attributes:
        program: Makes the program of a step from what is shown of some images.
        shown: What is shown of all of them, each of shape (images, …): views, and perhaps labels.
        course: What the program depends on besides what is shown and the network; None where it
            depends on more. Batches of one course and shape can be computed by one captured graph.
    """

    program: Callable[..., Program]
    shown: tuple[Tensor, ...]
    course: Hashable | None = None


class Advancing(Protocol):
    """A step on its way through its trips."""

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Go on as far as what is known allows; see ``Tape``."""


class Bounding(Protocol):
    """Bounds what each image adds to a sum, for privacy."""

    def turn(self, samples: int, share: float, step: int, randomness: Randomness) -> Tensor:
        """Choose images of a client secretly; as ``turn``."""

    def views(self, randomness: Randomness) -> Randomness:
        """Return the source of what nobody may draw again, in place of the run's."""

    def rows(self, exchange: AnyExchange, part: str, rows: Tensor) -> Tensor:
        """Scale down what exceeds its bound in rows of shape (images, d), one for each image."""

    def open(
        self,
        exchange: AnyExchange,
        network: nn.Module,
        batch: Batch,
        parameters: Mapping[str, Tensor],
        trips: Sequence[Contribution],
    ) -> Advancing:
        """Begin a step in which each image's part is bounded."""


def narrowed(gradient: ModelState, precision: torch.dtype | None) -> ModelState:
    """Round a gradient to the precision in which it travels."""
    if precision is None:
        return gradient
    return {name: part.to(precision) for name, part in gradient.items()}
