"""Embedding of representations in the plane by t-SNE."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from torch import Tensor

from ccfcpp.report.errors import CannotDrawError
from ccfcpp.report.numbers import drawn_at_random

_MOST, _FEWEST = 1_500, 8
"""Numbers of points: more take long and hide each other; fewer have no neighbourhoods."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """Some of the points and their places in the plane.

    Attributes:
        index: Indices of these points, int64 of shape (points,), ascending.
        places: Coordinates, float64 of shape (points, 2).
    """

    index: Tensor
    places: NDArray[np.float64]


def embed(points: Tensor, by_angle: bool) -> Embedding:
    """Compute t-SNE of at most 1,500 points; the result is the same at every call.

    Source: van der Maaten and Hinton 2008, *Visualizing Data using t-SNE*.

    Args:
        points: Floats of shape (points, dimensions).
        by_angle: Whether to normalise the points to length 1.

    Raises:
        CannotDrawError: There are too few points, or all are the same.
    """
    index = drawn_at_random(len(points), _MOST)
    if len(index) < _FEWEST:
        raise CannotDrawError(f"{len(index)} images are too few to have neighbourhoods")
    chosen = points[index].double()
    chosen = F.normalize(chosen, dim=1) if by_angle else chosen
    rank = _rank(chosen, torch.finfo(points.dtype).eps)
    if rank == 0:
        raise CannotDrawError("all representations are the same" + " in direction" * by_angle)
    method = TSNE(
        # PCA cannot give the second coordinate of points on a line.
        init="pca" if rank > 1 else "random",
        perplexity=min(30.0, (len(index) - 1) / 3),
        random_state=0,
    )
    return Embedding(index, np.asarray(method.fit_transform(chosen.numpy()), dtype=np.float64))


def _rank(points: Tensor, epsilon: float) -> int:
    """Count the directions in which points differ by more than rounding errors.

    Args:
        points: Of shape (points, dimensions).
        epsilon: Relative rounding error of the coordinates.
    """
    centred = points - points.mean(dim=0)
    least = epsilon * math.sqrt(points.numel()) * float(points.abs().max())
    return int((torch.linalg.svdvals(centred) > least).sum())
