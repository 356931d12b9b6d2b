"""Batched k-means: several sets of points, with several initialisations each, in parallel.

On an accelerator, a few batched products replace many small runs.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_CHECKED_EVERY = 8
"""Number of iterations between checks of convergence, each of which waits for the device."""


@torch.no_grad()
def best_centroids(points: Tensor, weights: Tensor, init: Tensor, iterations: int) -> Tensor:
    """Run Lloyd's k-means (1982) on each set of points from several initialisations.

    Return the centroids of the least inertia. A cluster without points keeps its centroid.

    Args:
        points: Float tensor of shape (sets, samples, dimensions).
        weights: Weight of each point, of shape (sets, samples), 0 if a set has fewer points.
        init: Initial centroids of shape (sets, restarts, k, dimensions).
        iterations: Largest number of iterations.

    Returns:
        Centroids of shape (sets, k, dimensions).
    """
    centroids = init
    for number in range(1, iterations + 1):
        before, centroids = centroids, _move_centroids(points, weights, centroids)
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
    """Draw initial centroids for each set of points by k-means++ (Arthur and Vassilvitskii 2007).

    The probability of a point is in proportion to its weight times its squared distance to the
    nearest centroid so far. To draw one, each point gets an exponential random number divided by
    its probability; the point with the smallest is chosen.

    Args:
        points: Float tensor of shape (sets, samples, dimensions).
        weights: Weight of each point, of shape (sets, samples), 0 if a set has fewer points.
        lengths: Number of points in each set; the rest is padding.
        k: Number of clusters.
        seeds: Seed of each set, whose result does not depend on the other sets.
        restarts: Number of initialisations of each set.

    Returns:
        Centroids of shape (sets, restarts, k, dimensions).
    """
    sets, samples, dimensions = points.shape
    sources = [torch.Generator(points.device).manual_seed(seed) for seed in seeds]
    chosen = points.new_empty(sets, restarts, k, dimensions)
    chances = weights.unsqueeze(1).expand(sets, restarts, samples)
    nearest = points.new_full((sets, restarts, samples), torch.inf)
    for place in range(k):
        draws = points.new_full((sets, restarts, samples), torch.inf)
        for own, length, source in zip(draws, lengths, sources, strict=True):
            own[:, :length] = own.new_empty(restarts, length).exponential_(generator=source)
        # If every point coincides with a centroid, as with duplicates, points are drawn again.
        none_left = chances.amax(dim=2, keepdim=True) == 0
        drawn = (draws / torch.where(none_left, weights.unsqueeze(1), chances)).argmin(dim=2)
        chosen[:, :, place] = points.gather(1, drawn.unsqueeze(2).expand(-1, -1, dimensions))
        distances = _squared_distances(points, chosen[:, :, place : place + 1])[..., 0]
        nearest = torch.minimum(nearest, distances.transpose(1, 2))
        chances = weights.unsqueeze(1) * nearest
    return chosen


def _squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """Return squared distances ‖x − c‖², of shape (sets, samples, restarts, k)."""
    sets, restarts, k, dimensions = centroids.shape
    products = points @ centroids.view(sets, restarts * k, dimensions).mT
    squares = points.square().sum(dim=2)[:, :, None, None] + centroids.square().sum(dim=3)[:, None]
    return (squares - 2 * products.view(sets, -1, restarts, k)).clamp(min=0)


def _move_centroids(points: Tensor, weights: Tensor, centroids: Tensor) -> Tensor:
    """Return the weighted mean of the points nearest to each centroid; empty clusters stay."""
    labels = _squared_distances(points, centroids).argmin(dim=3)
    clusters = torch.arange(centroids.shape[2], device=points.device)
    members = (labels.unsqueeze(3) == clusters) * weights[:, :, None, None]
    sums = (members.flatten(2).mT @ points).view_as(centroids)
    counts = members.sum(dim=1).unsqueeze(3)
    return torch.where(counts > 0, sums / counts.clamp(min=1e-30), centroids)


def _inertias(points: Tensor, weights: Tensor, centroids: Tensor) -> Tensor:
    """Return the weighted sum of squared distances to the nearest centroids, (sets, restarts)."""
    nearest = _squared_distances(points, centroids).amin(dim=3).double()
    return (weights.double().unsqueeze(2) * nearest).sum(dim=1)
