"""k-means of points in one process, by faiss on a CPU, and assignment of points to centroids."""

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
"""Distance of the points' mean from the origin, in standard deviations, that counts as far."""
_DISTANCES_AT_A_TIME = 1 << 28
"""1 GB of float32 on an accelerator."""


@dataclass(frozen=True)
class Clustering:
    """Result of k-means, with c ≤ k non-empty clusters.

    Attributes:
        centroids: Floats of shape (c, dimensions); float64 if the points are.
        sizes: Total weight of each cluster's points, float64 of shape (c,), above 0.
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
    init: Tensor | None = None,
) -> Clustering:
    """Run Lloyd's k-means (1982) from k-means++ seeds, and return the best of several restarts.

    Unlike faiss by default, it uses all points. Points on an accelerator are clustered there.

    Args:
        points: Float tensor of shape (samples, dimensions), at least one sample.
        k: Number of clusters. With k or fewer points, each point is its own cluster.
        seed: Seed of the initialisations; equal seeds give equal clusterings.
        restarts: Number of initialisations; ignored if ``init`` is given.
        iterations: Largest number of iterations of each restart.
        weights: Positive weight of each point, of shape (samples,); None: all are 1.
        init: Initial centroids of shape (k, dimensions); None: drawn by k-means++.

    Returns:
        The clustering, without empty clusters.

    Raises:
        ValueError: There is no point.
    """
    if len(points) == 0:
        raise ValueError("k-means needs at least one point")
    weights = _weights_of(points, weights)
    if len(points) <= k:
        return single_point_clusters(points, weights)
    if points.is_cuda:
        (result,) = _kmeans_on_device([points], [weights], k, [seed], restarts, iterations, init)
        return result
    # Imported here, since the import is slow and many runs do not need it.
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    trained = faiss.Kmeans(
        points.shape[1],
        k,
        niter=iterations,
        nredo=restarts if init is None else 1,
        seed=seed % 2**31,
        init_method=faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS,
        early_stop_threshold=1e-6,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )
    mean = mean_if_far(points)
    centred = points - mean.to(points)
    trained.train(
        _as_array(centred),
        weights=weights.cpu().numpy().astype(np.float32),
        init_centroids=None if init is None else _as_array(init - mean.to(init)),
    )
    return _clustering(centred, mean, torch.from_numpy(trained.centroids), weights)


def kmeans_of_each(
    points: Sequence[Tensor], k: int, *, seeds: Sequence[int], restarts: int, iterations: int
) -> list[Clustering]:
    """Run :func:`kmeans` on each set of points with its seed; on an accelerator, in parallel."""
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
    init: Tensor | None = None,
) -> list[Clustering]:
    """Cluster several sets of points by batched products, as :func:`kmeans` does.

    ``init``, of shape (k, dimensions), is only for a single set.
    """
    clusterings = [single_point_clusters(p, w) for p, w in zip(points, weights, strict=True)]
    large = sorted((len(own), place) for place, own in enumerate(points) if len(own) > k)
    while large:
        # Batches are of sets with similar lengths, as many as fit into memory.
        longest = large[-1][0]
        batch = large[-max(1, _DISTANCES_AT_A_TIME // (longest * restarts * k)) :]
        del large[-len(batch) :]
        places = [place for _, place in batch]
        means = [mean_if_far(points[i]) for i in places]
        centred = [points[i] - mean.to(points[i]) for i, mean in zip(places, means, strict=True)]
        padded, padded_weights = (
            torch.nn.utils.rnn.pad_sequence([own.float() for own in each], batch_first=True)
            for each in (centred, [weights[i] for i in places])
        )
        # What is drawn for a set does not depend on the other sets of its batch.
        set_seeds = [seeds[i] % 2**31 for i in places]
        if init is None:
            lengths = [length for length, _ in batch]
            first = kmeans_plus_plus(padded, padded_weights, lengths, k, set_seeds, restarts)
        else:
            first = (init - means[0]).view(1, 1, k, -1).float()
        centroids = best_centroids(padded, padded_weights, first, iterations)
        for place, own, mean, centre in zip(places, centred, means, centroids, strict=True):
            clusterings[place] = _clustering(own, mean, centre, weights[place])
    return clusterings


def _clustering(centred: Tensor, mean: Tensor, centroids: Tensor, weights: Tensor) -> Clustering:
    """Assign points to centroids, both as offsets from ``mean``, and return the clustering."""
    centroids = centroids.to(centred.device)
    labels = nearest(centred, centroids)
    sizes = sum_by_group(labels, weights.unsqueeze(1), len(centroids)).flatten()
    squares = (centred.float() - centroids[labels]).square().sum(dim=1)
    # With duplicate points, clusters may be empty.
    non_empty = sizes > 0
    inertia = float((weights * squares).sum())
    return Clustering(centroids[non_empty] + mean, sizes[non_empty], inertia)


def mean_if_far(points: Tensor, far: float = _FAR) -> Tensor:
    """Return the points' mean if it is far from the origin, else 0; of shape (dimensions,).

    Far from the origin, more than ``far`` standard deviations, faiss's distances in float32 would
    be mostly rounding errors.
    """
    spread, mean = torch.var_mean(points, dim=0, correction=0)
    return mean * (mean.square().sum() > far**2 * spread.sum())


def _as_array(points: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(points.detach().cpu().numpy(), dtype=np.float32)


def single_point_clusters(points: Tensor, weights: Tensor | None = None) -> Clustering:
    """Return the clustering in which each point is its own cluster, with its weight as size."""
    return Clustering(points, _weights_of(points, weights), 0.0)


def _weights_of(points: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return torch.ones(len(points), dtype=torch.float64, device=points.device)
    return weights.to(points.device, torch.float64)


def offsets(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Return points and centroids as offsets from the centroids' mean, in the points' dtype.

    With them, ‖c‖² − 2 xᵀc is precise even if points x and centroids c are far from the origin.
    """
    mean = centroids.mean(dim=0)
    return points - mean.to(points), (centroids - mean).to(points)


def assign_points(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the index of each point's nearest centroid (Euclidean), int64 of shape (samples,).

    Distances are computed in the points' dtype.

    Args:
        points: Tensor of shape (samples, dimensions).
        centroids: Tensor of shape (k, dimensions).
    """
    # The term ‖x‖² of ‖x − c‖² is the same for every centroid and is left out.
    x, c = offsets(points, centroids)
    scores = torch.addmm(c.square().sum(dim=1), x, c.T, alpha=-2).detach()
    if scores.device.type == "cpu":  # NumPy's argmin takes a quarter of the time.
        return torch.from_numpy(scores.numpy().argmin(axis=1))
    return scores.argmin(dim=1)


def nearest(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the index of each point's nearest centroid (CCFC++ paper, Eq. (1)), int64 (samples,).

    As ``assign_points``, but computed in the centroids' dtype.
    """
    return assign_points(points.to(centroids.dtype), centroids)


def most_similar(points: Tensor, centroids: Tensor) -> Tensor:
    """Return the index of each point's most similar centroid, by cosine; int64 (samples,).

    The code of CCFC's authors assigns points so. Arguments are those of ``assign_points``.
    """
    return (points.to(centroids.dtype) @ F.normalize(centroids, dim=1).T).argmax(dim=1)
