"""Coordinates in affine subspaces, and the subspace of largest variance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Frame:
    """An affine subspace of dimension r, with an origin and orthonormal axes.

    Attributes:
        origin: float64 of shape (d,).
        axes: Orthonormal rows, float64 of shape (r, d).
    """

    origin: Tensor
    axes: Tensor

    def coordinates(self, points: Tensor) -> Tensor:
        """Project points (samples, d) onto the subspace: coordinates, float64 (samples, r)."""
        return (points.double() - self.origin) @ self.axes.T

    def to_points(self, coordinates: Tensor) -> Tensor:
        """Return the points with the given coordinates: (samples, r) to float64 (samples, d)."""
        return self.origin + coordinates @ self.axes


def whole_space(dimensions: int) -> Frame:
    """Return the frame of the whole space: a point is its own coordinates."""
    return Frame(torch.zeros(dimensions).double(), torch.eye(dimensions).double())


def low_frequencies(shape: Sequence[int], most: int) -> Frame:
    """Return a frame whose coordinates are an image's lowest frequencies.

    They are those of the discrete cosine transform (DCT-II; Ahmed et al. 1974), without the first
    one, the mean brightness. They hold most of what distinguishes natural images.

    Args:
        shape: Channels, height and width of the images.
        most: Number of frequencies along height and width.
    """
    channels, height, width = shape
    down, across = (_cosines(side)[:most] for side in (height, width))
    axes = torch.kron(_cosines(channels), torch.kron(down, across))[1:]
    return Frame(torch.zeros(prod(shape)).double(), axes)


def _cosines(length: int) -> Tensor:
    """Return the matrix of the DCT-II, (length, length): row i is frequency i, of norm 1."""
    at = torch.arange(length).double()
    rows = torch.cos(math.pi / length * torch.outer(at, at + 0.5))
    return F.normalize(rows, dim=1)


def flatten_symmetric(matrix: Tensor) -> Tensor:
    """Flatten a symmetric matrix (r, r): return its upper triangle, of shape (r (r + 1) / 2,).

    Elements off the diagonal are multiplied by √2, so that the norm stays the same.
    """
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    upper = matrix[rows, columns]
    return torch.where(rows == columns, upper, math.sqrt(2) * upper)


def unflatten_symmetric(upper: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix (size, size) from the result of ``flatten_symmetric``."""
    rows, columns = torch.triu_indices(size, size, device=upper.device)
    matrix = upper.new_zeros(size, size)
    matrix[rows, columns] = torch.where(rows == columns, upper, upper / math.sqrt(2))
    return matrix + matrix.triu(1).T


def top_subspace(matrix: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues and eigenvectors of a covariance matrix with added noise.

    The eigenvalues of symmetric noise are symmetric about 0 (Wigner 1955), and a covariance matrix
    has no negative ones. So eigenvalues are taken for noise if they are smaller than the absolute
    value of the most negative one. At least two are returned.

    Args:
        matrix: Symmetric, float64 of shape (r, r).
        most: Largest number of eigenvectors.

    Returns:
        Eigenvalues, descending and not negative, of shape (s,), and eigenvectors as orthonormal
        rows, (s, r).
    """
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0), vectors.flip(1).T
    above = int((values > values[-1].neg().clamp(min=0)).sum())
    kept = min(most, len(values), max(above, 2))
    return values[:kept].clamp(min=0), vectors[:kept]
