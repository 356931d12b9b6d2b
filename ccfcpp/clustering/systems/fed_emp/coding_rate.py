"""The total coding rate, which keeps latents apart, as a function of sums over all crops.

Source: Tong et al., *EMP-SSL* (arXiv 2304.03977), Eq. (2). Of latents u of N crops, of length 1, it
needs N, Σ u and Σ uuᵀ alone.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

PRECISION = 0.2
"""ε² of the coding rate, as in EMP-SSL."""


def outer(u: Tensor) -> Tensor:
    """Σ (1, u)(1, u)ᵀ of crops (N, d): their number, Σ u and Σ uuᵀ; float64 of shape (1 + d)²."""
    wide = F.pad(u.double(), (1, 0), value=1.0)
    return (wide.T @ wide).flatten()


def square(sums: Tensor) -> Tensor:
    """Reshape what ``outer`` gave to a matrix of shape (1 + d, 1 + d)."""
    side = round(len(sums) ** 0.5)
    return sums.view(side, side)


def coding_rate(second: Tensor) -> Tensor:
    """R(Z) of latents whose second moment Σ uuᵀ / N, of shape (d, d), is given."""
    d = len(second)
    one = torch.eye(d, dtype=second.dtype, device=second.device)
    return torch.logdet(one + d / PRECISION * second) / 2


def is_plausible(sums: Tensor) -> bool:
    """Whether sums can be those of crops: their squared lengths add up, and none is negative."""
    squares = square(sums).diagonal()
    count, total = float(squares[0]), float(squares[1:].sum())
    return bool((squares >= 0).all()) and abs(total - count) <= 0.001 * (1 + count)


def nearest_plausible(sums: Tensor) -> Tensor:
    """Sums of one crop at least, as a matrix that has no negative eigenvalue."""
    matrix = square(sums)
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    projected = (vectors * values.clamp(min=0)) @ vectors.T
    projected[0, 0] = projected[0, 0].clamp(min=1)
    flat: Tensor = projected.flatten()
    return flat
