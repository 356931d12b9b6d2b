"""k-means of several sets of points, with several initialisations of each, side by side.

On an accelerator these are a few batched products in place of many small runs on the processor.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_CHECKED_EVERY = 8
"""Iterations after which convergence is looked for, which waits for the device."""


@torch.no_grad()
def best_centroids(points: Tensor, weights: Tensor, starts: Tensor, iterations: int) -> Tensor:
    """Run Lloyd's k-means (1982) from several initialisations of each set, and return the best.

    A cluster without points keeps its centroid.

    Args:
        points: Float tensor of shape (sets, samples, dimensions).
        weights: Weight of each point, of shape (sets, samples), 0 if a set has fewer points.
        starts: Initial centroids of shape (sets, starts, k, dimensions).
        iterations: Largest number of iterations.

    Returns:
        Centroids of shape (sets, k, dimensions).
    """
    centroids = starts
    for number in range(1, iterations + 1):
        before, centroids = centroids, _moved(points, weights, centroids)
        if number % _CHECKED_EVERY == 0 and torch.equal(before, centroids):
            break
    best = _inertias(points, weights, centroids).argmin(dim=1)
    return centroids[torch.arange(len(points), device=points.device), best]


@torch.no_grad()
def kmeans_plus_plus(
    points: Tensor,
    weights: Tensor,
    lengths: Sequence[int],
    k: int,
    seeds: Sequence[int],
    restarts: int,
) -> Tensor:
    """Draw initial centroids by k-means++ (Arthur and Vassilvitskii 2007).

    A point is drawn with a probability in proportion to its weight times the squared distance to
    the nearest centroid so far: it has the least of exponential numbers, each over its probability.

    Args:
        points: As of :func:`best_centroids`, as are ``weights``.
        weights: Weight of each point.
        lengths: Number of points of each set, the first ones.
        k: Number of clusters.
        seeds: Seed of each set, whose initialisations do not depend on the other sets.
        restarts: Number of initialisations.

    Returns:
        Centroids of shape (sets, restarts, k, dimensions).
    """
    sets, samples, dimensions = points.shape
    sources = [torch.Generator(points.device).manual_seed(seed) for seed in seeds]
    chosen = points.new_empty(sets, restarts, k, dimensions)
    chances = weights.unsqueeze(1).expand(sets, restarts, samples)
    nearest = points.new_full((sets, restarts, samples), torch.inf)
    for place in range(k):
        waits = points.new_full((sets, restarts, samples), torch.inf)
        for wait, length, source in zip(waits, lengths, sources, strict=True):
            wait[:, :length] = wait.new_empty(restarts, length).exponential_(generator=source)
        # Where all points are taken already, as with duplicates, any that counts may come again.
        none_left = chances.amax(dim=2, keepdim=True) == 0
        drawn = (waits / torch.where(none_left, weights.unsqueeze(1), chances)).argmin(dim=2)
        chosen[:, :, place] = points.gather(1, drawn.unsqueeze(2).expand(-1, -1, dimensions))
        distances = _squared_distances(points, chosen[:, :, place : place + 1])[..., 0]
        nearest = torch.minimum(nearest, distances.transpose(1, 2))
        chances = weights.unsqueeze(1) * nearest
    return chosen


def _squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """Return squared distances ‖x − c‖², of shape (sets, samples, starts, k)."""
    sets, starts, k, dimensions = centroids.shape
    products = points @ centroids.view(sets, starts * k, dimensions).mT
    squares = points.square().sum(dim=2)[:, :, None, None] + centroids.square().sum(dim=3)[:, None]
    return (squares - 2 * products.view(sets, -1, starts, k)).clamp(min=0)


def _moved(points: Tensor, weights: Tensor, centroids: Tensor) -> Tensor:
    """Return the mean of the points nearest to each centroid."""
    labels = _squared_distances(points, centroids).argmin(dim=3)
    clusters = torch.arange(centroids.shape[2], device=points.device)
    members = (labels.unsqueeze(3) == clusters) * weights[:, :, None, None]
    sums = (members.flatten(2).mT @ points).view_as(centroids)
    counts = members.sum(dim=1).unsqueeze(3)
    return torch.where(counts > 0, sums / counts.clamp(min=1e-30), centroids)


def _inertias(points: Tensor, weights: Tensor, centroids: Tensor) -> Tensor:
    """Return the weighted sum of the squared distances to the nearest centroids, by start."""
    nearest = _squared_distances(points, centroids).amin(dim=3).double()
    return (weights.double().unsqueeze(2) * nearest).sum(dim=1)
