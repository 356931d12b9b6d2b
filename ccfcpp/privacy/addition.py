"""How the updates of several clients become one that says all that the server needs.

Where a server needs a sum or a mean alone, nobody has to see a summand. An exchange declares it
(``summed``, ``averaged``); secure sums, clipping and noise then work on the parts that add up,
whatever the system.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.payload import pack, unpack

Parts = dict[str, Tensor]
"""What adds up, by name: float64 tensors of any shape."""


class Addition(ABC):
    """How updates of one type add up.

    Attributes:
        like: Of each part a tensor without numbers that has its dtype in an update, where updates
            tell it; known after ``parts``.
    """

    def __init__(self) -> None:
        self.like: Parts = {}

    @abstractmethod
    def parts(self, message: Any, update: Any, weight: float | None = None) -> Parts:
        """What of an update adds up.

        Args:
            message: What went down.
            update: What a client made of it.
            weight: How much a client counts in a mean, where all count alike: a loss, and how much
                they weigh together, then are no part. Its number of samples where it is None.
        """

    def shapes(self, message: Any) -> dict[str, torch.Size] | None:
        """The shapes of all parts by name, without loss and weight, where ``message`` tells."""
        return None

    @abstractmethod
    def whole(
        self,
        kind: type[Any],
        message: Any,
        totals: Mapping[str, Tensor],
        weight: float | None = None,
    ) -> Any:
        """The update that stands for several, from the sums of their parts.

        Args:
            kind: The updates' type.
            message: What went down.
            totals: float64 tensors by the names that ``parts`` gave.
            weight: What they are taken to weigh together, where all count alike.
        """


class Sums(Addition):
    """Every number of an update is a sum over images. It has no weight."""

    def parts(self, message: Any, update: Any, weight: float | None = None) -> Parts:
        """All of it."""
        tensors = pack(update)
        self.like = {name: tensor.new_empty(0) for name, tensor in tensors.items()}
        return {name: tensor.double() for name, tensor in tensors.items()}

    def whole(
        self,
        kind: type[Any],
        message: Any,
        totals: Mapping[str, Tensor],
        weight: float | None = None,
    ) -> Any:
        """The totals, in the dtypes of the summands."""
        return unpack(kind, {name: total.to(self.like[name]) for name, total in totals.items()})


_CHANGE, _WEIGHT, _LOSS, _TRAINED = "model/", "weight", "loss", "trained"


class Means(Addition):
    """Changes of a model, and losses, weighted by samples.

    Batch normalisation's running statistics are averaged like weights. Integer entries are counters
    (``num_batches_tracked``), of which a mean means nothing: they stay as they went down.
    """

    def parts(self, message: Any, update: Any, weight: float | None = None) -> Parts:
        """W (θ_c − θ), w, and w times the loss with a w of its own: some clients have none."""
        w = float(update.samples if weight is None else weight)
        parts = {
            _CHANGE + name: w * (update.model[name].double() - entry.double())
            for name, entry in message.model.items()
            if entry.is_floating_point()
        }
        if weight is not None:
            return parts
        trained = 0.0 if update.loss is None else w
        figures = {_WEIGHT: w, _LOSS: trained * (update.loss or 0.0), _TRAINED: trained}
        return parts | {n: torch.tensor(f, dtype=torch.float64) for n, f in figures.items()}

    def shapes(self, message: Any) -> dict[str, torch.Size]:
        """Those of the model."""
        floats = {n: entry for n, entry in message.model.items() if entry.is_floating_point()}
        return {_CHANGE + name: entry.shape for name, entry in floats.items()}

    def whole(
        self,
        kind: type[Any],
        message: Any,
        totals: Mapping[str, Tensor],
        weight: float | None = None,
    ) -> Any:
        """The mean model and the mean loss; numbers of which the server makes nothing are 0."""
        loss, divisor = None, weight
        if divisor is None:
            divisor, trained = float(totals[_WEIGHT]), float(totals[_TRAINED])
            loss = float(totals[_LOSS]) / trained if trained > 0 else None
        model = {
            name: (entry.double() + totals[_CHANGE + name].to(entry.device) / divisor).to(entry)
            if entry.is_floating_point()
            else entry
            for name, entry in message.model.items()
        }
        # A weight of 1 at least: the server divides by it.
        known = {"model": model, "samples": max(1, round(divisor)), "loss": loss}
        numbers = {field.name: 0 for field in dataclasses.fields(kind) if field.type is int}
        return kind(**numbers | known)


def addition_of(exchange: Exchange[Any, Any]) -> Addition | None:
    """How the updates of an exchange add up; None where the server needs each of them."""
    if exchange.summed:
        return Sums()
    return Means() if exchange.averaged else None
