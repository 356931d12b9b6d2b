"""Computations that only figures need."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ccfcpp.core.metrics import match_clusters

_POINTS_AT_A_TIME = 4096


def pair_correlations(of_covariance: Tensor) -> Tensor:
    """Correlation of each pair of dimensions that vary.

    Args:
        of_covariance: Shape (dimensions, dimensions).

    Returns:
        Shape (pairs,), from −1 to 1. A dimension whose variance is below 10⁻¹² of the largest one
        is constant up to rounding and is left out.
    """
    variances = of_covariance.diagonal()
    varies = variances > 1e-12 * variances.max().clamp(min=1e-300)
    kept = of_covariance[varies][:, varies]
    deviations = kept.diagonal().sqrt()
    correlations = (kept / deviations / deviations[:, None]).clamp(-1, 1)
    first, second = torch.triu_indices(len(kept), len(kept), offset=1)
    return correlations[first, second]


def counts_by(rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    """Count how often each pair (row, column) occurs.

    Args:
        rows: Integers below ``height``, shape (samples,).
        columns: Integers below ``width``, shape (samples,).
        height: Number of rows.
        width: Number of columns.

    Returns:
        int64 of shape (height, width).
    """
    return torch.bincount(rows * width + columns, minlength=height * width).view(height, width)


def matched_classes(classes: Tensor, found: Tensor, clusters: int) -> Tensor:
    """Match each cluster with a class (Hungarian method).

    Args:
        classes: True classes, int64 of shape (samples,).
        found: Cluster of each sample, int64 below ``clusters``, shape (samples,).
        clusters: Number of clusters.

    Returns:
        int64 of shape (clusters,), −1 for a cluster that is matched with none, or is empty.
    """
    matched = torch.full((clusters,), -1)
    matched[found] = torch.from_numpy(match_clusters(classes.numpy(), found.numpy()))
    return matched


def distances(points: Tensor, found: Tensor, centroids: Tensor, by_angle: bool) -> Tensor:
    """Distance of each point from the centroid of its cluster.

    Args:
        points: Floats of shape (points, dimensions).
        found: Cluster of each point, int64 of shape (points,).
        centroids: Floats of shape (clusters, dimensions).
        by_angle: Whether to measure angles; else Euclidean distances.

    Returns:
        Euclidean distances, or angles in degrees, of shape (points,).
    """
    # In parts: the pixels of large images in double precision take much memory.
    parts = zip(
        torch.split(points, _POINTS_AT_A_TIME), torch.split(found, _POINTS_AT_A_TIME), strict=True
    )
    return torch.cat(
        [_apart(part.double(), centroids[of].double(), by_angle) for part, of in parts]
    )


def _apart(points: Tensor, own: Tensor, by_angle: bool) -> Tensor:
    if not by_angle:
        apart: Tensor = torch.linalg.vector_norm(points - own, dim=1)
        return apart
    cosines = F.cosine_similarity(points, own, dim=1)
    return torch.rad2deg(torch.arccos(cosines.clamp(-1, 1)))


def extremes(distance: Tensor, members: Tensor, count: int, farthest: bool) -> Tensor:
    """Find the members of a cluster nearest to its centroid, or farthest from it.

    Args:
        distance: Distance of each point from its centroid, shape (points,).
        members: Which points belong to the cluster, bool of shape (points,).
        count: Largest number of members to return.
        farthest: Whether to return the farthest members; else the nearest.

    Returns:
        Indices of points, the most extreme first; ties are in the order of the indices.
    """
    index: Tensor = members.nonzero().flatten()
    order: Tensor = torch.argsort(distance[index], descending=farthest, stable=True)
    return index[order[:count]]


def drawn_at_random(count: int, most: int) -> Tensor:
    """Draw at most ``most`` of ``count`` indices; they ascend, and are the same at every call."""
    if count <= most:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(count, generator=generator)[:most].sort().values


def all_finite(points: Tensor) -> bool:
    """Whether all values are finite."""
    return math.isfinite(float(points.abs().max())) if points.numel() else True
