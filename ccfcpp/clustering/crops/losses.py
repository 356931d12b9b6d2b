"""What keeps latents apart, as functions of sums over the crops of all clients.

For a crop with the latent z, of length 1 and d numbers, u is z; for Barlow Twins it is z beside z̄,
the direction of the mean over the image's crops. Each loss needs the number of crops, Σ u and Σ uuᵀ
alone. To it a step adds −λ mean ⟨z, z̄⟩.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

PRECISION = 0.2
"""ε² of the coding rate, as in EMP-SSL."""
_VARIANCE, _REGULAR = 25.0, 1e-4
"""Of VICReg: the weight of its variance term, and what is added to variances."""
_APART = 0.0051
"""Of Barlow Twins: the weight of what lies off the diagonal."""


@dataclass(frozen=True)
class Moments:
    """Of all crops.

    Attributes:
        count: Their number N, a scalar.
        mean: Σ u / N, of shape (d,) or (2d,).
        second: Σ uuᵀ / N.
    """

    count: Tensor
    mean: Tensor
    second: Tensor

    @staticmethod
    def of(sums: Tensor) -> "Moments":
        """Moments of what ``outer`` gave, summed up."""
        matrix = square(sums)
        mean = matrix / matrix[0, 0].detach()
        return Moments(matrix[0, 0].detach(), mean[0, 1:], mean[1:, 1:])

    @property
    def covariance(self) -> Tensor:
        """The covariance of u."""
        return self.second - torch.outer(self.mean, self.mean)


def outer(u: Tensor) -> Tensor:
    """Σ (1, u)(1, u)ᵀ of crops (N, D): their number, Σ u and Σ uuᵀ; float64 of shape (1 + D)²."""
    wide = F.pad(u.double(), (1, 0), value=1.0)
    return (wide.T @ wide).flatten()


def square(sums: Tensor) -> Tensor:
    """What ``outer`` gave, as a matrix of shape (1 + D, 1 + D)."""
    side = round(len(sums) ** 0.5)
    return sums.view(side, side)


def coding_rate(moments: Moments) -> Tensor:
    """−R(Z), the negative total coding rate (Tong et al., *EMP-SSL*, arXiv 2304.03977, Eq. 2)."""
    d = len(moments.second)
    identity = torch.eye(d).to(moments.second)
    return -torch.logdet(identity + d / PRECISION * moments.second) / 2


def spectral(moments: Moments) -> Tensor:
    """E ⟨f, f′⟩² / d over pairs of crops, for f = √d z (HaoChen et al., NeurIPS 2021, Eq. 6)."""
    return len(moments.second) * moments.second.square().sum()


def vicreg(moments: Moments) -> Tensor:
    """Variance and covariance terms of √d z (Bardes, Ponce and LeCun, ICLR 2022, Eqs. 1 to 4)."""
    d = len(moments.second)
    covariance = d * moments.covariance
    deviations = (covariance.diagonal() + _REGULAR).sqrt()
    return _VARIANCE * F.relu(1 - deviations).mean() + _apart(covariance) / d


def barlow(moments: Moments) -> Tensor:
    """Barlow Twins of z and z̄ (Zbontar et al., ICML 2021, Eqs. 1 and 2)."""
    d = len(moments.second) // 2
    covariance = moments.covariance
    scales = covariance.diagonal().clamp(min=torch.finfo(covariance.dtype).eps).rsqrt()
    correlation = (scales[:, None] * covariance * scales)[:d, d:]
    return (1 - correlation.diagonal()).square().sum() + _APART * _apart(correlation)


def _apart(matrix: Tensor) -> Tensor:
    """Sum of the squares off the diagonal."""
    return matrix.square().sum() - matrix.diagonal().square().sum()


@dataclass(frozen=True)
class Loss:
    """A loss, and how it is used.

    Attributes:
        apart: Of the moments, a scalar.
        weight: λ where none is given: those of the papers, in this form.
        joint: Whether u has z̄, too.
    """

    apart: Callable[[Moments], Tensor]
    weight: float
    joint: bool = False


LOSSES = {
    "rate": Loss(coding_rate, 200.0),
    "spectral": Loss(spectral, 2.0),
    "vicreg": Loss(vicreg, 50.0),
    "barlow": Loss(barlow, 0.0, joint=True),
}
"""By the names that ``crops.loss`` takes."""
