"""Averages of client models."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

ModelState = dict[str, Tensor]
"""A model's parameters and buffers by name, as ``Module.state_dict`` gives them."""


def average_models(models: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> ModelState:
    """Weighted mean of models, entry by entry (McMahan et al. 2017, Algorithm 1).

    BatchNorm policy: floating-point buffers (running mean and variance) are averaged like weights.
    Integer entries are counters (``num_batches_tracked``); a mean of them counts nothing, so the
    largest is kept.

    Args:
        models: Models with equal names and shapes, at least one.
        weights: One non-negative weight a model, usually its number of samples; they need not sum
            to one.

    Returns:
        The mean model. Sums are formed in float64, in the order given.

    Raises:
        ValueError: No model, lengths that differ, or weights without a positive sum.
    """
    if not models or len(models) != len(weights):
        raise ValueError(f"got {len(models)} models and {len(weights)} weights")
    total = float(sum(weights))
    if min(weights) < 0 or total <= 0:
        raise ValueError(f"weights must be non-negative with a positive sum, got {list(weights)}")
    shares = [weight / total for weight in weights]
    return {name: _average([model[name] for model in models], shares) for name in models[0]}


def _average(entries: list[Tensor], shares: list[float]) -> Tensor:
    if not entries[0].is_floating_point():
        return torch.stack(entries).amax(dim=0)
    total = torch.zeros_like(entries[0], dtype=torch.float64)
    for entry, share in zip(entries, shares, strict=True):
        total.add_(entry, alpha=share)
    return total.to(entries[0].dtype)
