"""k-means of many clients with all restarts at once.

One matrix product gives the distances of all points to all centroids of all restarts; another gives
the sums of the clusters' members.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ccfcpp.clustering.kmeans.server import Clustering, own_points, owned_clusters
from ccfcpp.core.randomness import generator_of

_HOST_DISTANCES, _DEVICE_DISTANCES = 1 << 20, 1 << 26
"""Number of distances that are computed at a time, at least those of one client. On a host they fit
into the caches; on an accelerator they keep it busy."""

_TOLERANCE = 1e-4
"""A start ends where the sum of its centroids' squared movements is below this share of the points'
variance, averaged over dimensions, as in scikit-learn."""


def kmeans_each(
    points: Sequence[Tensor], k: int, *, seeds: Sequence[int], restarts: int, iterations: int
) -> list[Clustering]:
    """Run Lloyd's k-means (1982) for several clients separately, and keep each one's best restart.

    Starts are drawn by greedy k-means++ (Arthur and Vassilvitskii 2007), as in scikit-learn.

    Args:
        points: A float tensor of shape (samples, dimensions) for each client, none empty.
        k: Number of clusters. With no more than ``k`` points, each point is its own cluster.
        seeds: A seed for each client. A client's result depends, up to rounding, only on its points
            and its seed.
        restarts: Number of starts.
        iterations: Largest number of iterations of each start.

    Returns:
        At most ``k`` clusters for each client; empty clusters are left out.

    Raises:
        ValueError: A client has no point.
    """
    if any(len(own) == 0 for own in points):
        raise ValueError("k-means needs at least one point")
    found: dict[int, Clustering] = {
        client: own_points(own) for client, own in enumerate(points) if len(own) <= k
    }
    on_host = all(own.device.type == "cpu" for own in points)
    room = (_HOST_DISTANCES if on_host else _DEVICE_DISTANCES) // (k * restarts)
    for clients in _batches([len(own) for own in points], k, room):
        own = [points[client].float() for client in clients]
        draws = torch.stack([_draws(seeds[client], k, restarts) for client in clients])
        centroids = _best_starts(own, k, draws.to(own[0].device), iterations)
        for client, some, centres in zip(clients, own, centroids, strict=True):
            found[client] = owned_clusters(some, None, centres)
    return [found[client] for client in range(len(points))]


def _batches(sizes: Sequence[int], k: int, room: int) -> Iterator[list[int]]:
    """Batch clients of similar sizes, largest first, up to ``room`` points in a batch.

    Clients with no more points than clusters are left out.
    """
    batch: list[int] = []
    for client in sorted(range(len(sizes)), key=lambda client: (-sizes[client], client)):
        if sizes[client] <= k:
            continue
        largest = sizes[batch[0]] if batch else sizes[client]
        if batch and (len(batch) + 1) * largest > room:
            yield batch
            batch = []
        batch.append(client)
    if batch:
        yield batch


def _draws(seed: int, k: int, restarts: int) -> Tensor:
    """Draw the numbers in [0, 1) that choose the candidates for each start's centroids."""
    candidates = 2 + int(math.log(k))
    return torch.rand(restarts, k, candidates, generator=generator_of(seed), dtype=torch.float64)


def _best_starts(own: list[Tensor], k: int, draws: Tensor, iterations: int) -> Tensor:
    """Compute the centroids of each client's best restart, of shape (clients, k, dimensions)."""
    points = pad_sequence(own, batch_first=True)
    mask = pad_sequence([torch.ones_like(some[:, 0]) for some in own], batch_first=True)
    counts = mask.sum(dim=1)
    # Centring keeps distances precise.
    means = (points.sum(dim=1) / counts.unsqueeze(1)).unsqueeze(1)
    points = (points - means) * mask.unsqueeze(2)
    variances = points.square().sum(dim=(1, 2)) / (counts * points.shape[2])
    centroids = _greedy_starts(points, mask, draws)
    centroids, inertias = _descend(points, mask, centroids, _TOLERANCE * variances, iterations)
    best = inertias.argmin(dim=1)
    return centroids[torch.arange(len(own), device=best.device), best] + means


def _greedy_starts(points: Tensor, mask: Tensor, draws: Tensor) -> Tensor:
    """Greedy k-means++: draw several candidates by squared distance, and keep the best.

    Args:
        points: Shape (clients, samples, dimensions).
        mask: 1 for each point, 0 for padding, shape (clients, samples).
        draws: Numbers in [0, 1), shape (clients, restarts, k, candidates).

    Returns:
        Centroids of shape (clients, restarts, k, dimensions).
    """
    clients, restarts, k, _ = draws.shape
    squares = points.square().sum(dim=2)
    closest = mask.unsqueeze(1).expand(-1, restarts, -1)  # The first centroid is drawn uniformly.
    chosen = []
    for step in range(k):
        cumulated = closest.double().cumsum(dim=2)
        # Where every point is a centroid already, any point may be drawn.
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
        closest = distances.take_along_dim(best.unsqueeze(3), dim=2).squeeze(2)
        chosen.append(drawn.gather(2, best))
    starts = torch.cat(chosen, dim=2)
    return points.gather(1, _as_rows(starts.flatten(1), points.shape[2])).view(
        clients, restarts, k, -1
    )


def _as_rows(index: Tensor, dimensions: int) -> Tensor:
    return index.unsqueeze(2).expand(-1, -1, dimensions)


def _squared_distances(points: Tensor, squares: Tensor, centroids: Tensor) -> Tensor:
    """Squared distances of shape (clients, centroids, samples), clamped at 0."""
    own = centroids.square().sum(dim=2, keepdim=True)
    cross = torch.baddbmm(own + squares.unsqueeze(1), centroids, points.mT, alpha=-2)
    return cross.clamp_(min=0)


@dataclass
class _Starts:
    """Restarts that have not converged; each is a separate problem.

    Attributes:
        client: The client whose points a problem has, int64 of shape (problems,).
        index: Index among the problems at the start, int64 of shape (problems,).
        centroids: Shape (problems, k, dimensions).
        labels: The centroid of each point, int64 of shape (problems, samples).
        upper: Upper bound of each point's distance to its centroid, shape (problems, samples).
        lower: Lower bound of its distance to each centroid, infinite for its own, shape
            (problems, k, samples).
        sums: Sum of each cluster's members, float64 of shape (problems, k, dimensions).
        sizes: Number of each cluster's members, float64 of shape (problems, k).
    """

    client: Tensor
    index: Tensor
    centroids: Tensor
    labels: Tensor
    upper: Tensor
    lower: Tensor
    sums: Tensor
    sizes: Tensor

    def some(self, chosen: Tensor) -> "_Starts":
        """Select the problems at ``chosen``."""
        return _Starts(*(getattr(self, part.name)[chosen] for part in fields(self)))


def _descend(
    points: Tensor, mask: Tensor, centroids: Tensor, tolerances: Tensor, iterations: int
) -> tuple[Tensor, Tensor]:
    """Run Lloyd's iterations of all restarts; restarts that have converged are left out.

    By the bounds of Elkan (2003), distances are recomputed only where a point may have come nearer
    to another centroid. The assignments equal those of the full computation.

    Args:
        points: Shape (clients, samples, dimensions), 0 for padding.
        mask: 1 for each point, 0 for padding, shape (clients, samples).
        centroids: Shape (clients, restarts, k, dimensions).
        tolerances: Squared movement below which a restart ends, shape (clients,).
        iterations: Largest number of iterations.

    Returns:
        Centroids of the input's shape, and inertias of shape (clients, restarts).
    """
    clients, restarts, k, dimensions = centroids.shape
    squares = points.square().sum(dim=2)
    settled = centroids.flatten(0, 1).clone()
    problems = torch.arange(clients * restarts, device=points.device)
    bounds = points.new_zeros(len(problems), k, points.shape[1])
    starts = _Starts(
        problems // restarts,
        problems,
        settled.clone(),
        torch.zeros_like(bounds[:, 0], dtype=torch.int64),
        torch.full_like(bounds[:, 0], torch.inf),
        bounds,
        points.new_zeros(len(problems), k, dimensions, dtype=torch.float64),
        points.new_zeros(len(problems), k, dtype=torch.float64),
    )
    for _ in range(iterations):
        _reassign(starts, points, squares, mask, settled)
        means = starts.sums / starts.sizes.clamp(min=1).unsqueeze(2)
        # A cluster that lost all its members stays where it is.
        moved = torch.where(starts.sizes.unsqueeze(2) > 0, means.to(points.dtype), starts.centroids)
        shifts = torch.linalg.vector_norm(moved - starts.centroids, dim=2)
        starts.centroids = moved
        starts.upper += shifts.gather(1, starts.labels)
        starts.lower -= shifts.unsqueeze(2)
        settled[starts.index] = moved
        moving = shifts.square().sum(dim=1) > tolerances[starts.client]
        if not bool(moving.all()):
            starts = starts.some(moving.nonzero().flatten())
            if len(starts.index) == 0:
                break
    settled = settled.view_as(centroids)
    distances = _squared_distances(points, squares, settled.flatten(1, 2))
    closest = distances.view(clients, restarts, k, -1).amin(dim=2)
    return settled, (closest * mask.unsqueeze(1)).sum(dim=2)


def _reassign(
    starts: _Starts, points: Tensor, squares: Tensor, mask: Tensor, current: Tensor
) -> None:
    """Update labels, bounds, sums and sizes to the current centroids.

    Args:
        starts: The restarts that have not converged.
        points: Points of all clients.
        squares: Squared lengths of the points.
        mask: 1 for each point, 0 for padding.
        current: Centroids of all restarts, of shape (clients · restarts, k, dimensions).
    """
    doubtful = (starts.upper > starts.lower.amin(dim=1)) & (mask[starts.client] > 0)
    most = int(doubtful.sum(dim=1).max())
    if most * 4 > points.shape[1]:
        _reassign_all(starts, points, squares, mask, current)
    elif most > 0:
        _reassign_some(starts, points, squares, doubtful, most)


def _reassign_all(
    starts: _Starts, points: Tensor, squares: Tensor, mask: Tensor, current: Tensor
) -> None:
    # Converged restarts are included: there are few while many points change clusters.
    k, clients = current.shape[1], len(points)
    by_client = current.view(clients, -1, current.shape[2])
    distances = _squared_distances(points, squares, by_client).view(len(current), k, -1)
    labels, upper, lower = _bounds(distances)
    members = torch.zeros_like(distances).scatter_(1, labels.unsqueeze(1), 1.0)
    members = members.view(clients, -1, points.shape[1]) * mask.unsqueeze(1)
    sums = torch.bmm(members, points).view(current.shape)
    sizes = members.view(len(current), k, -1).sum(dim=2)
    moving = starts.index
    starts.labels, starts.upper, starts.lower = labels[moving], upper[moving], lower[moving]
    starts.sums, starts.sizes = sums[moving].double(), sizes[moving].double()


def _reassign_some(
    starts: _Starts, points: Tensor, squares: Tensor, doubtful: Tensor, most: int
) -> None:
    problem, sample = doubtful.nonzero(as_tuple=True)
    # The doubtful points of each problem in a row, padded with its first point.
    place = torch.arange(len(problem), device=points.device)
    counts = doubtful.sum(dim=1)
    place = place - (counts.cumsum(dim=0) - counts)[problem]
    samples = torch.zeros(len(counts), most, dtype=torch.int64, device=points.device)
    samples[problem, place] = sample
    owners = starts.client.unsqueeze(1)
    rows = points[owners, samples]
    distances = _squared_distances(rows, squares[owners, samples], starts.centroids)
    labels, upper, lower = _bounds(distances)
    labels, upper = labels[problem, place], upper[problem, place]
    before = starts.labels[problem, sample]
    starts.labels[problem, sample] = labels
    starts.upper[problem, sample] = upper
    starts.lower[problem, :, sample] = lower[problem, :, place]
    changed = (labels != before).nonzero().flatten()
    k = starts.centroids.shape[1]
    values = points[starts.client[problem[changed]], sample[changed]].double()
    for cluster, sign in ((labels, 1.0), (before, -1.0)):
        flat = problem[changed] * k + cluster[changed]
        starts.sums.flatten(0, 1).index_add_(0, flat, values, alpha=sign)
        starts.sizes.flatten().index_add_(0, flat, torch.full_like(values[:, 0], sign))


def _bounds(distances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute labels and exact bounds: the distances to the nearest centroid and to the others.

    Args:
        distances: Squared distances of shape (problems, k, samples).

    Returns:
        Two tensors of shape (problems, samples), and one of the distances' shape that is infinite
        at the nearest centroid.
    """
    nearest, labels = distances.min(dim=1)
    others = distances.scatter(1, labels.unsqueeze(1), torch.inf)
    return labels, nearest.sqrt(), others.sqrt_()
