"""The total coding rate, a loss term that keeps latents apart, from sums over all crops.

Source: Tong et al., *EMP-SSL* (arXiv 2304.03977), Eq. (2). For the latents u of N crops, each of
length 1, only N, Σ u and Σ uuᵀ are needed.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

PRECISION = 0.2
"""ε² of the coding rate, as in EMP-SSL."""


def sum_outer_products(u: Tensor) -> Tensor:
    """Return Σ (1, u)(1, u)ᵀ, that is N, Σ u and Σ uuᵀ, of latents (N, d): float64 ((1 + d)²,)."""
    wide = F.pad(u.double(), (1, 0), value=1.0)
    return (wide.T @ wide).flatten()


def as_matrix(sums: Tensor) -> Tensor:
    """Reshape the result of ``sum_outer_products`` to a matrix of shape (1 + d, 1 + d)."""
    side = round(len(sums) ** 0.5)
    return sums.view(side, side)


def coding_rate(second: Tensor) -> Tensor:
    """Return EMP-SSL's coding rate R(Z), a scalar, from the second moment Σ uuᵀ / N (d, d)."""
    d = len(second)
    one = torch.eye(d, dtype=second.dtype, device=second.device)
    return torch.logdet(one + d / PRECISION * second) / 2


def is_plausible(sums: Tensor) -> bool:
    """Return whether sums can be those of crops: Σ uuᵀ has trace N, and its diagonal is ≥ 0."""
    squares = as_matrix(sums).diagonal()
    count, total = float(squares[0]), float(squares[1:].sum())
    return bool((squares >= 0).all()) and abs(total - count) <= 0.001 * (1 + count)


def nearest_plausible(sums: Tensor) -> Tensor:
    """Project noisy sums (N, Σ u, Σ uuᵀ) onto possible ones: N ≥ 1, no eigenvalue below 0.

    Sums have the shape ((1 + d)²,), that of the result of ``sum_outer_products``.
    """
    matrix = as_matrix(sums)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    projected = (vectors * values.clamp(min=0)) @ vectors.T
    projected[0, 0] = projected[0, 0].clamp(min=1)
    flat: Tensor = projected.flatten()
    return flat
