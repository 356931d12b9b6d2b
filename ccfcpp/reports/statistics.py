"""Computations for figures."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from torch import Tensor

from ccfcpp.core.metrics import match_clusters

_FEWEST_POINTS = 8
"""Fewest points of an embedding: fewer have no neighbourhoods."""


class CannotDrawError(Exception):
    """A figure cannot be drawn; the message gives the reason for the reader of a report.

    ``RecordedRun`` and the modules of figures raise it if a run lacks the needed numbers.
    """


def pair_correlations(covariance: Tensor) -> Tensor:
    """Compute the correlation of each pair of dimensions that vary, of shape (pairs,).

    ``covariance`` has shape (dimensions, dimensions). A dimension whose variance is below 10⁻¹² of
    the largest one is constant up to rounding and is left out.
    """
    variances = covariance.diagonal()
    varies = variances > 1e-12 * variances.max().clamp(min=1e-300)
    kept = covariance[varies][:, varies]
    deviations = kept.diagonal().sqrt()
    correlations = (kept / deviations / deviations[:, None]).clamp(-1, 1)
    first, second = torch.triu_indices(len(kept), len(kept), offset=1)
    return correlations[first, second]


def matched_classes(classes: Tensor, labels: Tensor, clusters: int) -> Tensor:
    """Match each cluster with a class (Hungarian method).

    ``classes`` and ``labels``, the classes and clusters of samples, are int64 of shape (samples,).
    The result is int64 of shape (clusters,), −1 for a cluster without a class, or without samples.
    """
    matched = torch.full((clusters,), -1)
    matched[labels] = torch.from_numpy(match_clusters(classes.numpy(), labels.numpy()))
    return matched


def tsne(points: Tensor, by_angle: bool) -> NDArray[np.float64]:
    """Embed points in the plane by t-SNE, deterministically; return places of shape (points, 2).

    Source: van der Maaten and Hinton 2008, *Visualizing Data using t-SNE*.

    Args:
        points: Floats of shape (points, dimensions), of length 1 if they are compared by angle.
        by_angle: Whether points are compared by angle.

    Raises:
        CannotDrawError: There are too few points, or all are the same.
    """
    if len(points) < _FEWEST_POINTS:
        raise CannotDrawError(f"{len(points)} images are too few to have neighbourhoods")
    rank = _rank(points)
    if rank == 0:
        raise CannotDrawError("all representations are the same" + " in direction" * by_angle)
    method = TSNE(
        # PCA cannot give the second coordinate of points on a line.
        init="pca" if rank > 1 else "random",
        perplexity=min(30.0, (len(points) - 1) / 3),
        random_state=0,
    )
    return np.asarray(method.fit_transform(points.numpy()), dtype=np.float64)


def _rank(points: Tensor) -> int:
    """Count the directions in which points differ by more than rounding errors."""
    centred = points - points.mean(dim=0)
    epsilon = torch.finfo(torch.float32).eps
    least = epsilon * math.sqrt(points.numel()) * float(points.abs().max())
    return int((torch.linalg.svdvals(centred) > least).sum())
