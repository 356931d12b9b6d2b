"""Types of a synchronised step: its messages, its batches, and bounds on images.

A step takes a few exchanges. A message has the totals of the clients' sums since the exchange
before; an update has everything that a client can compute from it.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import AnyExchange
from ccfcpp.engine.update_format import Sum
from ccfcpp.models.pooled import Program
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class DescentState:
    """The server's training state besides the model: step count, optimizer moments, pooled sums.

    Attributes:
        steps: Number of completed steps.
        first: First moments of the optimizer, by parameter.
        second: Second moments, of the parameters that have them.
        totals: Pooled sums of the current step, by name; of lagged ones those of the step before.
        slopes: Gradients of the loss with respect to these sums, pooled over the clients.
        figures: Metrics of the last step, float64 scalars by name.
        parts: The last part of each client in each pooled sum, by ``client_part_name``, and in how
            many steps it had one; only of clients whose parts come one by one.
    """

    steps: int
    first: ModelState
    second: ModelState
    totals: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, Tensor] = field(default_factory=dict)


class DescendingState(Protocol):
    """Interface of a system's state that holds a model in training by synchronised steps."""

    @property
    def model(self) -> ModelState:
        """The model that is trained."""

    @property
    def version(self) -> int:
        """Number of changes of the model."""

    @property
    def descent(self) -> DescentState | None:
        """The state of the training; None outside of training."""


D = TypeVar("D", bound=DescendingState)


@dataclass(frozen=True)
class StepMessage:
    """The server's message in one exchange of a step: what clients do not know yet.

    Attributes:
        version: Number of changes of the model.
        model: In the first exchange of a step: the model.
        totals: Pooled sums that clients do not know yet, by name.
        slopes: Gradients with respect to pooled sums that clients do not know yet, by name.
    """

    version: int
    model: ModelState = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution:
    """The update of one exchange of a step: parts of sums over all clients.

    Attributes:
        sums: A client's part of each sum, float64, by name.
        slopes: Its part of the gradient with respect to each pooled sum, float64, by name.
        gradient: In the last exchange: its part of the gradient, by parameter.
        figures: In the last exchange: its part of the metrics, float64 scalars by name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)
    gradient: ModelState = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientContribution(Contribution):
    """The contribution of one client whose number is known.

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
"""The meaning of the parts of a contribution."""


@dataclass(frozen=True)
class Batch:
    """The samples that a process uses in a step.

    Attributes:
        program: Makes the program of a step from tensors of some images.
        shown: Tensors of all images, each of shape (images, …): views, and perhaps labels.
        course: What the program depends on besides these tensors and the network; None if it
            depends on more. Batches of one course and shape can be computed by one captured graph.
    """

    program: Callable[..., Program]
    shown: tuple[Tensor, ...]
    course: Hashable | None = None


class Advancing(Protocol):
    """Interface of a training step that is split into exchanges and is not yet complete."""

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Advance as far as the known sums and gradients allow; see ``Tape``."""


class Bounding(Protocol):
    """Interface of bounds on what each image adds to a sum, for privacy."""

    def select_images(
        self, samples: int, share: float, step: int, randomness: Randomness
    ) -> Tensor:
        """Draw a client's images of a step secretly; see the function ``select_images``."""

    def views(self, randomness: Randomness) -> Randomness:
        """Return a secret source of random numbers for views, in place of the run's."""

    def rows(self, exchange: AnyExchange, part: str, rows: Tensor) -> Tensor:
        """Scale down rows of shape (images, d) that exceed an image's bound."""

    def open(
        self,
        exchange: AnyExchange,
        network: nn.Module,
        batch: Batch,
        parameters: Mapping[str, Tensor],
        trips: Sequence[Contribution],
    ) -> Advancing:
        """Start a step in which each image's part is bounded."""


def round_gradient(gradient: ModelState, precision: torch.dtype | None) -> ModelState:
    """Round a gradient to the precision in which it is sent."""
    if precision is None:
        return gradient
    return {name: part.to(precision) for name, part in gradient.items()}
