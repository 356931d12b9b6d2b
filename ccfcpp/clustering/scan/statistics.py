"""Batch normalisation over the batches of all clients, in sums.

Where clients add up n, Σa and Σa² of their latents, each of them can normalise its own by the mean
and the variance over all. The gradient through both statistics is a sum over clients, too: with
r = (v + ε)^(−1/2), z = (a − μ) r and the gradient g of the loss at z,

    dL/dμ = −Σ g r,    dL/dv = −½ Σ g (a − μ) r³,
    dL/da = g r + (dL/dμ)/n + (dL/dv) 2 (a − μ)/n,

which is batch normalisation's backward pass (Ioffe and Szegedy 2015) over the union of all batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-5
"""Added to variances, as ``torch.nn.BatchNorm1d`` does."""


@dataclass(frozen=True)
class Moments:
    """Sums over latents, which may be added up.

    Attributes:
        count: How many latents there are.
        sums: Σa, float64 of shape (d,).
        squares: Σa², float64 of shape (d,).
    """

    count: int
    sums: Tensor
    squares: Tensor


@dataclass(frozen=True)
class Pooled:
    """Statistics over the latents of all clients.

    Attributes:
        count: How many latents there are.
        mean: μ of shape (d,).
        variance: v of shape (d,), the mean squared deviation.
    """

    count: int
    mean: Tensor
    variance: Tensor


@dataclass(frozen=True)
class StatisticsGradient:
    """The gradient of the loss at the pooled statistics, or a client's part of it.

    Attributes:
        mean: dL/dμ of shape (d,).
        variance: dL/dv of shape (d,).
    """

    mean: Tensor
    variance: Tensor


def moments(latents: Tensor) -> Moments:
    """The sums of latents of shape (batch, d)."""
    wide = latents.detach().double()
    return Moments(len(latents), wide.sum(dim=0), wide.square().sum(dim=0))


def pooled(sums: Moments, dtype: torch.dtype) -> Pooled:
    """Mean and variance from the sums over all clients, in the dtype of latents."""
    mean = sums.sums / sums.count
    variance = (sums.squares / sums.count - mean.square()).clamp(min=0)
    return Pooled(sums.count, mean.to(dtype), variance.to(dtype))


def normalised(latents: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Z = (a − μ)(v + ε)^(−1/2), of the latents' shape (batch, d)."""
    return (latents - mean) * (variance + EPSILON).rsqrt()


def statistics_gradient(gradient: Tensor, latents: Tensor, over: Pooled) -> StatisticsGradient:
    """A client's part of the gradient at the pooled statistics.

    Args:
        gradient: dL/dz of the client's latents, of shape (batch, d).
        latents: a, of the same shape.
        over: The pooled statistics.
    """
    scale = (over.variance + EPSILON).rsqrt()
    deviations = latents.detach() - over.mean
    by_variance = -0.5 * (gradient * deviations).sum(dim=0) * scale.pow(3)
    return StatisticsGradient(-gradient.sum(dim=0) * scale, by_variance)


def latents_gradient(
    gradient: Tensor, latents: Tensor, over: Pooled, total: StatisticsGradient
) -> Tensor:
    """dL/da of a client's latents, of shape (batch, d).

    Args:
        gradient: dL/dz, of the same shape.
        latents: a, of the same shape.
        over: The pooled statistics.
        total: The gradient at them, summed over all clients.
    """
    scale = (over.variance + EPSILON).rsqrt()
    deviations = latents.detach() - over.mean
    through = total.mean + 2 * total.variance * deviations
    return gradient * scale + through / over.count
