"""Types of a synchronised step: its messages and updates, its batches, and bounds on images.

A synchronised step is a training step over the batches of all clients, and takes a few exchanges. A
message has the totals of the sums that clients sent in the exchange before; an update has all sums
and gradients that a client can compute from it.
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
        totals: Pooled sums (over all clients) of the current step, by name; lagged ones are of the
            step before.
        slopes: Gradients of the loss with respect to these sums, summed over the clients, by name.
        figures: Metrics of the last step, float64 scalars by name.
        parts: Each client's last contribution to each pooled sum, by ``client_part_name``, and
            counts of its steps; only of clients that send updates of their own.
        lost: Number of steps without a result since the model has changed; None if there are none.
    """

    steps: int
    first: ModelState
    second: ModelState
    totals: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    parts: dict[str, Tensor] = field(default_factory=dict)
    lost: int | None = None


class DescendingState(Protocol):
    """Interface of a system's state that holds a model in training by synchronised steps."""

    @property
    def model(self) -> ModelState:
        """The model that is trained."""

    @property
    def version(self) -> int:
        """Number of steps that have changed the model, or had no result before such a step."""

    @property
    def descent(self) -> DescentState | None:
        """The state of the training; None outside of training."""


def current_version(state: DescendingState) -> int:
    """Return the version of a state's next step, above those of steps that had no result."""
    return state.version + ((state.descent.lost or 0) if state.descent else 0)


D = TypeVar("D", bound=DescendingState)


@dataclass(frozen=True)
class StepMessage:
    """Message of one exchange of a step: the model, sums and gradients that clients still lack.

    Attributes:
        version: Number of steps so far. Clients answer each once, so that lost ones count, too.
        model: The model, in the first exchange of a step.
        totals: New pooled sums (over all clients), by name.
        slopes: New gradients of the loss with respect to pooled sums, by the sum's name.
    """

    version: int
    model: ModelState = field(default_factory=dict)
    totals: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution:
    """Update of one exchange of a step: what a client adds to sums over all clients.

    Attributes:
        sums: Its summand of each pooled sum, float64, by name.
        slopes: Its summand of the gradient with respect to each pooled sum, float64, by name.
        gradient: In the last exchange, its summand of the gradient, by parameter.
        figures: In the last exchange, its summands of metrics, float64 scalars by name.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    slopes: dict[str, Tensor] = field(default_factory=dict)
    gradient: ModelState = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ClientContribution(Contribution):
    """Contribution of a single client, with its number.

    Attributes:
        client: The client's number.
    """

    client: int = -1


PARTS = {
    "sums": Sum(each=True, statistic=True),
    "slopes": Sum(each=True, of_batch=True),
    "gradient": Sum(of_batch=True),
    "figures": Sum(of_batch=True, report=True),
}
"""The meaning of each part of a contribution, by the field's name."""


@dataclass(frozen=True)
class Batch:
    """The samples that a process uses in a training step, and how to compute on them.

    Attributes:
        program: Makes the step's program, a generator (``ccfcpp.models.pooled``), from tensors
            like ``shown``.
        shown: Tensors of all images, each of shape (images, …): views, and perhaps labels.
        course: Everything that the program depends on besides the network and ``shown``: batches
            of equal course and shapes may use one captured CUDA graph. None: no graph.
    """

    program: Callable[..., Program]
    shown: tuple[Tensor, ...]
    course: Hashable | None = None


class Advancing(Protocol):
    """Interface of a training step that is split into exchanges and is not yet complete."""

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Compute as far as the sums and gradients given so far allow; see ``Tape.advance``."""


class Bounding(Protocol):
    """Interface of an object that bounds what each image adds to a sum, for privacy."""

    def select_images(
        self, samples: int, share: float, step: int, randomness: Randomness
    ) -> Tensor:
        """Draw a client's images for a step secretly; see ``select_images`` in ``descent``."""

    def views(self, randomness: Randomness) -> Randomness:
        """Return a secret source of random numbers for views of images, in place of the run's."""

    def rows(self, exchange: AnyExchange, part: str, rows: Tensor) -> Tensor:
        """Clip each row of ``rows`` (images, d) to the norm bound of the update's part ``part``."""

    def open(
        self,
        exchange: AnyExchange,
        network: nn.Module,
        batch: Batch,
        parameters: Mapping[str, Tensor],
        trips: Sequence[Contribution],
    ) -> Advancing:
        """Start a step in which each image's contribution to the sums is bounded.

        ``trips``: for each exchange a template of the contribution, filled with zeros.
        """


def round_gradient(gradient: ModelState, precision: torch.dtype | None) -> ModelState:
    """Round a gradient (tensors by name) to the dtype ``precision`` for sending; None: keep it."""
    if precision is None:
        return gradient
    return {name: part.to(precision) for name, part in gradient.items()}
