"""Lloyd's k-means over clients: exact, as if all samples lay in one place."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.plugin import (
    Count,
    InitState,
    Problem,
    Randomness,
    Sum,
    SumsSystem,
    assign_points,
    required_centroids,
    sum_by_group,
)


@dataclass(frozen=True)
class Centroids(InitState):
    """What the server knows: `centroids`, and how far they moved."""

    moved: float | None = None


@dataclass(frozen=True)
class Sums:
    """What a client sends: the sum of each cluster's points, and how many they are."""

    sums: Tensor
    counts: Tensor


def init(problem: Problem, randomness: Randomness) -> Centroids:
    """Begin without centroids: the library finds some first."""
    return Centroids()


def local(state: Centroids, points: Tensor) -> Sums:
    """Add up the points of each cluster."""
    centroids = required_centroids(state.centroids)
    labels = assign_points(points, centroids)
    sums = sum_by_group(labels, points, len(centroids))
    return Sums(sums, labels.bincount(minlength=len(centroids)))


def update(state: Centroids, total: Sums) -> Centroids:
    """Move each centroid to the mean of its points; one without points stays."""
    before, counts = required_centroids(state.centroids), total.counts.unsqueeze(1)
    means = (total.sums / counts.clamp(min=1)).to(before)
    after = torch.where(counts > 0, means, before)
    return replace(state, centroids=after, moved=float((after - before).abs().max()))


def has_converged(state: Centroids) -> bool:
    """Tell whether no centroid moves any more."""
    return state.moved is not None and state.moved <= 1e-6


FED_LLOYD = SumsSystem(
    init,
    local,
    update,
    has_converged=has_converged,
    parts={"sums": Sum(count="counts"), "counts": Count()},
    largest={"counts": 1.0},
    counts=lambda config: True,
    title="Fed-Lloyd",
    summary="Lloyd's k-means over all clients",
)
