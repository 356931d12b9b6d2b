"""Averages of client models."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ccfcpp.models.state import ModelState


class ModelAverage:
    """Weighted mean of models, tensor by tensor (McMahan et al. 2017, Algorithm 1).

    Models are added one by one, in float64 and in the order given, and none is stored.

    BatchNorm: running means and variances are averaged like weights. Integer tensors are counters
    (``num_batches_tracked``), of which the largest is kept.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._sums: ModelState = {}
        self._kinds: dict[str, torch.dtype] = {}

    def add(self, model: Mapping[str, Tensor], weight: float) -> None:
        """Add a model to the mean.

        Args:
            model: A model with the names and shapes of the others.
            weight: Not negative, usually the client's number of samples; weights need not sum to 1.

        Raises:
            ValueError: The weight is negative.
        """
        if weight < 0:
            raise ValueError(f"weights must not be negative, got {weight}")
        self._weight += weight
        for name, entry in model.items():
            if name not in self._sums:
                self._kinds[name] = entry.dtype
                summed = torch.float64 if entry.is_floating_point() else entry.dtype
                self._sums[name] = torch.zeros_like(entry, dtype=summed)
            if entry.is_floating_point():
                self._sums[name].add_(entry, alpha=weight)
            else:
                torch.maximum(self._sums[name], entry, out=self._sums[name])

    def result(self) -> ModelState:
        """Return the mean model.

        Raises:
            ValueError: No model was added, or none with a positive weight.
        """
        if self._weight <= 0:
            raise ValueError("an average needs a model with a positive weight")
        return {
            name: total.div(self._weight).to(self._kinds[name])
            if total.is_floating_point()
            else total
            for name, total in self._sums.items()
        }
