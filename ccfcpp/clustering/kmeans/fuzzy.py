"""Fuzzy c-means, in which every sample has a degree of membership in every cluster."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FuzzyClustering:
    """Result of fuzzy c-means.

    Attributes:
        centroids: Shape (k, dimensions), with the dtype of the initial centroids.
        supports: float64 of shape (k,): the sum of the memberships in each cluster.
        averaged: float64 of shape (k,): effective number of points in the mean of each centroid,
            (Σᵢ wᵢ)² / Σᵢ wᵢ² with wᵢ = uᵢⱼᵐ (Kish 1965); uᵢⱼ is the membership of point i in
            cluster j, m the fuzzifier. With a large m one point can outweigh all others.
        objective: Σᵢⱼ uᵢⱼᵐ ‖xᵢ − cⱼ‖² over points x and centroids c, which is minimised.
        iterations: Number of iterations.
    """

    centroids: Tensor
    supports: Tensor
    averaged: Tensor
    objective: float
    iterations: int


def fuzzy_c_means(
    points: Tensor, init: Tensor, *, m: float, tolerance: float, iterations: int
) -> FuzzyClustering:
    """Run fuzzy c-means (Bezdek 1981) from given initial centroids, by alternating optimisation.

    Args:
        points: Float tensor of shape (samples, dimensions), at least one sample.
        init: Initial centroids of shape (k, dimensions), in the points' dtype.
        m: Fuzzifier, above 1: the closer to 1, the closer the result is to that of k-means.
        tolerance: The algorithm ends if no coordinate of a centroid moves by more than this.
        iterations: Largest number of iterations, at least 1.

    Raises:
        ValueError: There is no point, or ``m`` or ``iterations`` is out of its range.
    """
    if len(points) == 0:
        raise ValueError("fuzzy c-means needs at least one point")
    if m <= 1 or iterations < 1:
        raise ValueError(f"m must be above 1 and iterations at least 1, got {m} and {iterations}")
    # Centring limits rounding errors of distances.
    mean = points.mean(dim=0)
    centred = points - mean
    squares = centred.square().sum(dim=1, keepdim=True)
    centroids = init - mean
    done, moves = 0, math.inf
    while done < iterations and moves > tolerance:
        distances = _squared_distances(centred, squares, centroids)
        moved = _weighted_means(centred, _weights(distances, m), centroids)
        moves = float((moved - centroids).abs().max())
        centroids = moved
        done += 1
    distances = _squared_distances(centred, squares, centroids)
    degrees = memberships(distances, m).double()
    objective = float((degrees.pow(m) * distances).sum())
    weights = _weights(distances, m).double()
    averaged = weights.sum(dim=0).square() / weights.square().sum(dim=0).clamp(min=1e-300)
    return FuzzyClustering(centroids + mean, degrees.sum(dim=0), averaged, objective, done)


def memberships(squared_distances: Tensor, m: float) -> Tensor:
    """Return the memberships uᵢⱼ = 1 / Σₗ (dᵢⱼ / dᵢₗ)^(2 / (m − 1)) of samples i in clusters j.

    A sample that coincides with one or more centroids belongs only to these, in equal parts.

    Args:
        squared_distances: Squared distances dᵢⱼ² to the centroids, of shape (samples, k).
        m: Fuzzifier, above 1.

    Returns:
        Tensor of the same shape, whose rows sum to 1.
    """
    return _log_memberships(squared_distances, m).exp()


def _log_memberships(squared_distances: Tensor, m: float) -> Tensor:
    # Logarithms prevent overflow of the powers if m is close to 1.
    degrees = torch.log_softmax(squared_distances.log() / (1 - m), dim=1)
    coincide = squared_distances == 0
    shared = (coincide.to(degrees.dtype) / coincide.sum(dim=1, keepdim=True)).log()
    return torch.where(coincide.any(dim=1, keepdim=True), shared, degrees)


def _weights(squared_distances: Tensor, m: float) -> Tensor:
    """Return the memberships' powers uᵢⱼᵐ, divided by the largest in cluster j.

    The division prevents underflow, and does not change weighted means.
    """
    logs = _log_memberships(squared_distances, m)
    largest = logs.amax(dim=0).clamp(min=torch.finfo(logs.dtype).min)
    return torch.exp(m * (logs - largest))


def _squared_distances(points: Tensor, squares: Tensor, centroids: Tensor) -> Tensor:
    """Return ‖x − c‖² of shape (samples, k), given ‖x‖² as ``squares``; rounding errors are 0."""
    sizes = squares + centroids.square().sum(dim=1)
    # With few rows and many columns this product is faster than its transpose.
    distances = torch.addmm(sizes.T, centroids, points.T, alpha=-2).T
    rounding = 4 * torch.finfo(points.dtype).eps
    return distances.masked_fill_(distances <= rounding * sizes, 0)


def _weighted_means(points: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """Return each cluster's weighted mean of all points; ``before`` if all its weights are 0."""
    totals = weights.sum(dim=0).unsqueeze(1)
    means = weights.T @ points / totals.clamp(min=1)  # The largest weight of each is 1.
    return torch.where(totals > 0, means, before)
