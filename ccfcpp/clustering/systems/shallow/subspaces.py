"""Coordinates in affine subspaces, and the subspace of most variance."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Frame:
    """An affine subspace with coordinates.

    Attributes:
        origin: float64 of shape (d,).
        axes: float64 of shape (r, d), orthonormal rows.
    """

    origin: Tensor
    axes: Tensor

    def coordinates(self, points: Tensor) -> Tensor:
        """Project points (samples, d) on the subspace; return coordinates, float64 (samples, r)."""
        return (points.double() - self.origin) @ self.axes.T

    def places(self, coordinates: Tensor) -> Tensor:
        """Return the points with given coordinates (samples, r), float64 (samples, d)."""
        return self.origin + coordinates @ self.axes


def whole_space(dimensions: int) -> Frame:
    """Return the frame of the whole space, with the usual coordinates."""
    return Frame(torch.zeros(dimensions).double(), torch.eye(dimensions).double())


def low_frequencies(shape: Sequence[int], most: int) -> Frame:
    """Return the frame of the lowest frequencies of images' discrete cosine transform, DCT-II.

    These frequencies (Ahmed et al. 1974) hold most of what distinguishes natural images, and depend
    on no data. The first one, the brightness of the whole image, is left out.

    Args:
        shape: Channels, height and width.
        most: Number of frequencies along height and width.
    """
    channels, height, width = shape
    down, across = (_cosines(side)[:most] for side in (height, width))
    axes = torch.kron(_cosines(channels), torch.kron(down, across))[1:]
    return Frame(torch.zeros(prod(shape)).double(), axes)


def _cosines(length: int) -> Tensor:
    """Return the transform of signals of a length: orthonormal rows, lowest frequency first."""
    at = torch.arange(length).double()
    rows = torch.cos(math.pi / length * torch.outer(at, at + 0.5))
    return F.normalize(rows, dim=1)


def half(matrix: Tensor) -> Tensor:
    """Return the upper triangle of a symmetric matrix (r, r) as a vector (r (r + 1) / 2,).

    Elements off the diagonal are multiplied by √2, so that the vector has the matrix's norm.
    """
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    upper = matrix[rows, columns]
    return torch.where(rows == columns, upper, math.sqrt(2) * upper)


def from_half(upper: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix (size, size) from the vector that ``half`` made of it."""
    rows, columns = torch.triu_indices(size, size, device=upper.device)
    matrix = upper.new_zeros(size, size)
    matrix[rows, columns] = torch.where(rows == columns, upper, upper / math.sqrt(2))
    return matrix + matrix.triu(1).T


def top_subspace(matrix: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the eigenvectors with the largest eigenvalues of a symmetric matrix with noise.

    Without noise no eigenvalue is negative. The spectrum of symmetric noise is symmetric about 0
    (Wigner 1955), so that eigenvalues below the absolute value of the most negative one are taken
    for noise. The two largest ones always stay.

    Args:
        matrix: float64 of shape (r, r).
        most: Largest number of eigenvectors.

    Returns:
        Eigenvalues, descending and not negative, of shape (s,), and orthonormal rows (s, r).
    """
    values, vectors = torch.linalg.eigh(matrix)
    values, vectors = values.flip(0), vectors.flip(1).T
    above = int((values > values[-1].neg().clamp(min=0)).sum())
    kept = min(most, len(values), max(above, 2))
    return values[:kept].clamp(min=0), vectors[:kept]
