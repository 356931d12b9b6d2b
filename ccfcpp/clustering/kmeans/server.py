"""k-means, on a processor by faiss, and the assignment of samples to centroids."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.batched import best_centroids, kmeans_plus_plus
from ccfcpp.clustering.kmeans.centroids import sum_by_group

_FAR = 10.0
"""Standard deviations of the points from the origin to their mean."""
_HELD = 1 << 28
"""Distances that are held at a time on an accelerator: 1 GB."""


@dataclass(frozen=True)
class Clustering:
    """Centroids, sizes and inertia of a k-means clustering.

    Attributes:
        centroids: Shape (found, dimensions), with 1 ≤ found ≤ k; float64 if the points are.
        sizes: float64 tensor of shape (found,), the positive total weight of each cluster's points.
        inertia: Weighted sum of the squared distances of the points to their centroids.
    """

    centroids: Tensor
    sizes: Tensor
    inertia: float


def kmeans(
    points: Tensor,
    k: int,
    *,
    seed: int,
    restarts: int = 10,
    iterations: int = 100,
    weights: Tensor | None = None,
    starts: Tensor | None = None,
) -> Clustering:
    """Run Lloyd's k-means (1982) from k-means++ seeds, and keep the best of several restarts.

    It uses all points, whereas faiss by default samples 256 points for each centroid. Points on an
    accelerator are clustered there.

    Args:
        points: Float tensor of shape (samples, dimensions), at least one sample.
        k: Number of clusters. With no more than ``k`` points, each point is its own cluster.
        seed: Seed of the restarts; equal seeds give equal clusterings.
        restarts: Number of initialisations.
        iterations: Largest number of iterations of each start; a run ends earlier if it converges.
        weights: Positive weight of each point, shape (samples,); all 1 by default.
        starts: Initial centroids of shape (k, dimensions) for a single start; None draws them.

    Returns:
        At most ``k`` clusters; empty clusters are left out.

    Raises:
        ValueError: There is no point.
    """
    if len(points) == 0:
        raise ValueError("k-means needs at least one point")
    weights = _weights_of(points, weights)
    if len(points) <= k:
        return single_point_clusters(points, weights)
    if points.is_cuda:
        (found,) = _kmeans_on_device([points], [weights], k, [seed], restarts, iterations, starts)
        return found
    # Imported where it is needed, since the import is slow and many runs start without it.
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    trained = faiss.Kmeans(
        points.shape[1],
        k,
        niter=iterations,
        nredo=restarts if starts is None else 1,
        seed=seed % 2**31,
        init_method=faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        early_stop_threshold=1e-6,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    mean = mean_if_far(points)
    about = points - mean.to(points)
    trained.train(
        _as_array(about),
        weights=weights.cpu().numpy().astype(np.float32),
        init_centroids=None if starts is None else _as_array(starts - mean.to(starts)),
    )
    return _clustering(about, mean, torch.from_numpy(trained.centroids), weights)


def kmeans_of_each(
    points: Sequence[Tensor], k: int, *, seeds: Sequence[int], restarts: int, iterations: int
) -> list[Clustering]:
    """Run :func:`kmeans` on several sets of points, on an accelerator side by side."""
    if not points or not points[0].is_cuda:
        return [
            kmeans(own, k, seed=seed, restarts=restarts, iterations=iterations)
            for own, seed in zip(points, seeds, strict=True)
        ]
    weights = [_weights_of(own, None) for own in points]
    return _kmeans_on_device(points, weights, k, seeds, restarts, iterations)


def _kmeans_on_device(
    points: Sequence[Tensor],
    weights: Sequence[Tensor],
    k: int,
    seeds: Sequence[int],
    restarts: int,
    iterations: int,
    starts: Tensor | None = None,
) -> list[Clustering]:
    """Cluster several sets of points by batched products; see :func:`kmeans`.

    Given starts, of shape (k, dimensions), are for a single set.
    """
    found = [
        single_point_clusters(own, weight) for own, weight in zip(points, weights, strict=True)
    ]
    large = sorted((len(own), place) for place, own in enumerate(points) if len(own) > k)
    while large:
        # Sets of about one length go together, as many as the memory holds.
        longest = large[-1][0]
        together = large[-max(1, _HELD // (longest * restarts * k)) :]
        del large[-len(together) :]
        places = [place for _, place in together]
        means = [mean_if_far(points[i]) for i in places]
        about = [points[i] - mean.to(points[i]) for i, mean in zip(places, means, strict=True)]
        padded, counted = (
            torch.nn.utils.rnn.pad_sequence([own.float() for own in each], batch_first=True)
            for each in (about, [weights[i] for i in places])
        )
        # The numbers that are drawn for a set do not depend on those beside it.
        chosen = [seeds[i] % 2**31 for i in places]
        if starts is None:
            lengths = [length for length, _ in together]
            first = kmeans_plus_plus(padded, counted, lengths, k, chosen, restarts)
        else:
            first = (starts - means[0]).view(1, 1, k, -1).float()
        centroids = best_centroids(padded, counted, first, iterations)
        for place, own, mean, centre in zip(places, about, means, centroids, strict=True):
            found[place] = _clustering(own, mean, centre, weights[place])
    return found


def _clustering(about: Tensor, mean: Tensor, centroids: Tensor, weights: Tensor) -> Clustering:
    """Return the clustering of points, given as offsets from a mean, around some centroids."""
    centroids = centroids.to(about.device)
    labels = nearest(about, centroids)
    sizes = sum_by_group(labels, weights.unsqueeze(1), len(centroids)).flatten()
    squares = (about.float() - centroids[labels]).square().sum(dim=1)
    # Duplicate points can leave clusters empty.
    owned = sizes > 0
    return Clustering(centroids[owned] + mean, sizes[owned], float((weights * squares).sum()))


def mean_if_far(points: Tensor, far: float = _FAR) -> Tensor:
    """Return the points' mean if it is far from the origin, of shape (dimensions,); else 0.

    Far from the origin, faiss's distances in float32 would be rounding errors alone.
    """
    spread, mean = torch.var_mean(points, dim=0, correction=0)
    return mean * (mean.square().sum() > far**2 * spread.sum())


def _as_array(points: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(points.detach().cpu().numpy(), dtype=np.float32)


def single_point_clusters(points: Tensor, weights: Tensor | None = None) -> Clustering:
    """Make each point its own cluster."""
    return Clustering(points, _weights_of(points, weights), 0.0)


def _weights_of(points: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return torch.ones(len(points), dtype=torch.float64, device=points.device)
    return weights.to(points.device, torch.float64)


def offsets(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Move points and centroids so that the centroids' mean is 0.

    Then ‖c‖² − 2 xᵀc keeps small differences of distances, far from the origin, too.

    Returns:
        Both, in the points' dtype.
    """
    mean = centroids.mean(dim=0)
    return points - mean.to(points), (centroids - mean).to(points)


def assign_points(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the nearest centroid of each point in Euclidean distance, int64 of shape (samples,).

    Points are of shape (samples, dimensions), centroids of shape (k, dimensions). Distances are by
    one matrix product, in the points' precision.
    """
    # The term ‖x‖² of ‖x − c‖² is the same for every centroid and is left out.
    x, c = offsets(points, centroids)
    scores = torch.addmm(c.square().sum(dim=1), x, c.T, alpha=-2).detach()
    if scores.device.type == "cpu":  # NumPy's argmin takes a quarter of the time.
        return torch.from_numpy(scores.numpy().argmin(axis=1))
    return scores.argmin(dim=1)


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Run ``assign_points`` in the centroids' precision; Eq. (1) of the CCFC++ paper."""
    return assign_points(points.to(centroids.dtype), centroids)


def most_similar(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the centroid with the highest cosine similarity, as the authors' code assigns.

    Shapes are those of ``nearest``.
    """
    return (points.to(centroids.dtype) @ F.normalize(centroids, dim=1).T).argmax(dim=1)
