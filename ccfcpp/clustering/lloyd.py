"""k-means of many clients and all its restarts at once.

The distances of all points to all centroids of all restarts are one matrix product, and so are the
sums of their members.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccfcpp.clustering.kmeans import Clustering, own_points, owned_clusters
from ccfcpp.randomness import generator_of

_DISTANCES = 1 << 24
"""Distances that are computed at a time, at least one client's: it bounds the memory."""

_TOLERANCE = 1e-4
"""A start ends where its centroids move, squared and in sum, by less than this share of the points'
mean variance a dimension: scikit-learn's rule."""


def kmeans_each(
    points: Sequence[Tensor], k: int, *, seeds: Sequence[int], restarts: int, iterations: int
) -> list[Clustering]:
    """Lloyd's k-means (1982) of several clients, each by itself, the best of several restarts.

    Starts are drawn by greedy k-means++ (Arthur and Vassilvitskii 2007), as in scikit-learn.

    Args:
        points: A float tensor of shape (samples, dimensions) for each client, none empty.
        k: Number of clusters. With no more than ``k`` points, each point is a cluster of its own.
        seeds: A seed for each client. What a client finds depends, up to rounding, on its points
            and its seed alone.
        restarts: Number of starts.
        iterations: Iterations of each start at most.

    Returns:
        For each client at most ``k`` clusters: one that no point belongs to is left out.

    Raises:
        ValueError: A client has no point.
    """
    if any(len(own) == 0 for own in points):
        raise ValueError("k-means needs at least one point")
    found: dict[int, Clustering] = {
        client: own_points(own) for client, own in enumerate(points) if len(own) <= k
    }
    for clients in _batches([len(own) for own in points], k, restarts):
        own = [points[client].float() for client in clients]
        draws = torch.stack([_draws(seeds[client], k, restarts) for client in clients])
        centroids = _best_starts(own, k, draws.to(own[0].device), iterations)
        for client, some, centres in zip(clients, own, centroids, strict=True):
            found[client] = owned_clusters(some, None, centres)
    return [found[client] for client in range(len(points))]


def _batches(sizes: Sequence[int], k: int, restarts: int) -> Iterator[list[int]]:
    """Clients of similar sizes, largest first, whose distances fit the memory together."""
    batch: list[int] = []
    for client in sorted(range(len(sizes)), key=lambda client: (-sizes[client], client)):
        if sizes[client] <= k:
            continue
        largest = sizes[batch[0]] if batch else sizes[client]
        if batch and (len(batch) + 1) * largest * k * restarts > _DISTANCES:
            yield batch
            batch = []
        batch.append(client)
    if batch:
        yield batch


def _draws(seed: int, k: int, restarts: int) -> Tensor:
    """Numbers in [0, 1) that choose the candidates for each start's centroids."""
    candidates = 2 + int(math.log(k))
    return torch.rand(restarts, k, candidates, generator=generator_of(seed), dtype=torch.float64)


def _best_starts(own: list[Tensor], k: int, draws: Tensor, iterations: int) -> Tensor:
    """Centroids of the best restart of each client, of shape (clients, k, dimensions)."""
    points = pad_sequence(own, batch_first=True)
    mask = pad_sequence([torch.ones_like(some[:, 0]) for some in own], batch_first=True)
    counts = mask.sum(dim=1)
    # Around the mean, so that distances keep their digits.
    means = (points.sum(dim=1) / counts.unsqueeze(1)).unsqueeze(1)
    points = (points - means) * mask.unsqueeze(2)
    variances = points.square().sum(dim=(1, 2)) / (counts * points.shape[2])
    centroids = _greedy_starts(points, mask, draws)
    centroids, inertias = _descend(points, mask, centroids, _TOLERANCE * variances, iterations)
    best = inertias.argmin(dim=1)
    return centroids[torch.arange(len(own), device=best.device), best] + means


def _greedy_starts(points: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
    """Greedy k-means++: of several candidates, drawn by their squared distance, the best.

    Args:
        points: Shape (clients, samples, dimensions).
        mask: 1 for each point that is one, shape (clients, samples).
        draws: Numbers in [0, 1), shape (clients, restarts, k, candidates).

    Returns:
        Centroids of shape (clients, restarts, k, dimensions).
    """
    clients, restarts, k, _ = draws.shape
    squares = points.square().sum(dim=2)
    closest = mask.unsqueeze(1).expand(-1, restarts, -1)  # the first is drawn uniformly
    chosen = []
    for step in range(k):
        cumulated = closest.double().cumsum(dim=2)
        # Where every point is a centroid already, any will do.
        targets = draws[:, :, step] * cumulated[:, :, -1:]
        drawn = torch.searchsorted(cumulated, targets, right=True)
        drawn = torch.minimum(drawn, (mask.sum(dim=1).long() - 1).view(-1, 1, 1))
        if step == 0:
            drawn = drawn[:, :, :1]
        positions = points.gather(1, _as_rows(drawn.flatten(1), points.shape[2]))
        distances = _squared_distances(points, squares, positions)
        distances = distances.view(clients, restarts, -1, points.shape[1])
        if step > 0:
            distances = torch.minimum(distances, closest.unsqueeze(2))
        distances = distances * mask[:, None, None]
        best = distances.sum(dim=3).argmin(dim=2, keepdim=True)
        closest = distances.gather(2, best.unsqueeze(3).expand(-1, -1, -1, points.shape[1]))[
            :, :, 0
        ]
        chosen.append(drawn.gather(2, best))
    starts = torch.cat(chosen, dim=2)
    return points.gather(1, _as_rows(starts.flatten(1), points.shape[2])).view(
        clients, restarts, k, -1
    )


def _as_rows(index: Tensor, dimensions: int) -> Tensor:
    return index.unsqueeze(2).expand(-1, -1, dimensions)


def _squared_distances(points: Tensor, squares: Tensor, centroids: Tensor) -> Tensor:
    """Shape (clients, centroids, samples), none below 0."""
    own = centroids.square().sum(dim=2, keepdim=True)
    cross = torch.baddbmm(own + squares.unsqueeze(1), centroids, points.mT, alpha=-2)
    return cross.clamp_(min=0)


def _descend(
    points: Tensor, mask: Tensor, centroids: Tensor, tolerances: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Lloyd's iterations of all restarts; one that has settled is not computed any more.

    Args:
        points: Shape (clients, samples, dimensions).
        mask: 1 for each point that is one, shape (clients, samples).
        centroids: Shape (clients, restarts, k, dimensions).
        tolerances: Squared movement that ends a restart, shape (clients,).
        iterations: Iterations at most.

    Returns:
        Centroids of the input's shape, and inertias of shape (clients, restarts).
    """
    clients, restarts, k, dimensions = centroids.shape
    squares = points.square().sum(dim=2)
    settled = torch.empty_like(centroids)
    active = torch.arange(restarts, device=points.device).expand(clients, -1)
    current = centroids
    for _ in range(iterations):
        members, _ = _assign(points, squares, mask, current)
        sums = torch.bmm(members.flatten(1, 2), points).view(current.shape)
        sizes = members.sum(dim=3).unsqueeze(3)
        # A cluster that lost all its members stays where it is.
        moved = torch.where(sizes > 0, sums / sizes.clamp(min=1), current)
        still = (moved - current).square().sum(dim=(2, 3)) <= tolerances.unsqueeze(1)
        settled.scatter_(1, active[:, :, None, None].expand_as(moved), moved)
        left = int((~still).sum(dim=1).max())
        if left == 0:
            break
        # Those that move come first; a client with fewer of them carries settled ones along.
        order = still.int().argsort(dim=1, stable=True)[:, :left]
        active = active.gather(1, order)
        current = moved.gather(1, order[:, :, None, None].expand(-1, -1, k, dimensions))
    _, inertias = _assign(points, squares, mask, settled)
    return settled, inertias


def _assign(
    points: Tensor, squares: Tensor, mask: Tensor, centroids: Tensor
) -> tuple[Tensor, Tensor]:
    """Members, 0 or 1, (clients, restarts, k, samples), and inertias, (clients, restarts)."""
    clients, restarts, k, _ = centroids.shape
    distances = _squared_distances(points, squares, centroids.flatten(1, 2))
    distances = distances.view(clients, restarts, k, -1)
    closest, labels = distances.min(dim=2, keepdim=True)
    members = torch.zeros_like(distances).scatter_(2, labels, mask[:, None, None].expand_as(labels))
    return members, (closest[:, :, 0] * mask.unsqueeze(1)).sum(dim=2)
