"""Fuzzy c-means: every sample belongs to every cluster, by degrees."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FuzzyClustering:
    """What fuzzy c-means found.

    Attributes:
        centroids: Of the starts' shape and dtype, (k, dimensions).
        supports: float64 of shape (k,): the sum of the memberships in each cluster.
        objective: Σᵢⱼ uᵢⱼᵐ ‖xᵢ − cⱼ‖², which the algorithm lowers.
        iterations: How many it took.
    """

    centroids: Tensor
    supports: Tensor
    objective: float
    iterations: int


def fuzzy_c_means(
    points: Tensor, starts: Tensor, *, m: float, tolerance: float, iterations: int
) -> FuzzyClustering:
    """Fuzzy c-means (Bezdek 1981) from given centroids, by alternating optimisation.

    Args:
        points: Float tensor of shape (samples, dimensions), at least one sample.
        starts: Centroids of shape (k, dimensions) to start from, of the points' dtype.
        m: Fuzzifier, above 1: towards 1 memberships become those of k-means.
        tolerance: It ends where no coordinate of a centroid moves further than this.
        iterations: Most iterations, 1 at least.

    Raises:
        ValueError: There is no point, or ``m`` or ``iterations`` is out of its range.
    """
    if len(points) == 0:
        raise ValueError("fuzzy c-means needs at least one point")
    if m <= 1 or iterations < 1:
        raise ValueError(f"m must be above 1 and iterations at least 1, got {m} and {iterations}")
    # Around the mean, so that distances keep their digits.
    mean = points.mean(dim=0)
    centred = points - mean
    squares = centred.square().sum(dim=1, keepdim=True)
    centroids = starts - mean
    done, moves = 0, math.inf
    while done < iterations and moves > tolerance:
        distances = _squared_distances(centred, squares, centroids)
        moved = _means(centred, _weights(distances, m), centroids)
        moves = float((moved - centroids).abs().max())
        centroids = moved
        done += 1
    distances = _squared_distances(centred, squares, centroids)
    degrees = memberships(distances, m).double()
    objective = float((degrees.pow(m) * distances).sum())
    return FuzzyClustering(centroids + mean, degrees.sum(dim=0), objective, done)


def memberships(squared_distances: Tensor, m: float) -> Tensor:
    """uᵢⱼ = 1 / Σₗ (dᵢⱼ / dᵢₗ)^(2 / (m − 1)): how far each sample belongs to each cluster.

    A sample that lies on centroids belongs to these alone, in equal parts.

    Args:
        squared_distances: dᵢⱼ², not negative, of shape (samples, k).
        m: Fuzzifier, above 1.

    Returns:
        Tensor of the same shape, whose rows sum to 1.
    """
    return _log_memberships(squared_distances, m).exp()


def _log_memberships(squared_distances: Tensor, m: float) -> Tensor:
    # Logarithms all the way, so that no power overflows where m is close to 1.
    degrees = torch.log_softmax(squared_distances.log() / (1 - m), dim=1)
    met = squared_distances == 0
    shared = (met.to(degrees.dtype) / met.sum(dim=1, keepdim=True)).log()
    return torch.where(met.any(dim=1, keepdim=True), shared, degrees)


def _weights(squared_distances: Tensor, m: float) -> Tensor:
    """uᵢⱼᵐ over the largest of its cluster, which a mean does not see, so that none vanishes."""
    logs = _log_memberships(squared_distances, m)
    largest = logs.amax(dim=0).clamp(min=torch.finfo(logs.dtype).min)
    return torch.exp(m * (logs - largest))


def _squared_distances(points: Tensor, squares: Tensor, centroids: Tensor) -> Tensor:
    """‖x‖² − 2xᵀc + ‖c‖² of shape (samples, k); what rounding alone can explain is 0."""
    sizes = squares + centroids.square().sum(dim=1)
    # Few rows, many columns: this product is faster than its transpose.
    distances = torch.addmm(sizes.T, centroids, points.T, alpha=-2).T
    rounding = 4 * torch.finfo(points.dtype).eps
    return distances.masked_fill_(distances <= rounding * sizes, 0)


def _means(points: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """The weighted mean of all points for each cluster; one without any weight stays."""
    totals = weights.sum(dim=0).unsqueeze(1)
    means = weights.T @ points / totals.clamp(min=1)  # a weight of 1 is among those of each
    return torch.where(totals > 0, means, before)
