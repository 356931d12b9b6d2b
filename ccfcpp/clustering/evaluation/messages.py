"""The exchanges by which a clustering is judged, and what the server comes to know by them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums
from ccfcpp.clustering.typical import MOST_DIMENSIONS, Typical
from ccfcpp.engine.exchange import Exchange, RefusedUpdateError
from ccfcpp.engine.parts import Count, Sum
from ccfcpp.engine.payload import PayloadError, unpack

MOVES = 3
"""Exchanges in which the cells of halves move."""
_MEASURES = 2
"""Distance from the own mean, and silhouette."""


@dataclass(frozen=True)
class Question:
    """What clients are asked about a model.

    Attributes:
        model: What they assign their images by, packed.
        members: Sums and numbers of each cluster's points; None before they are known.
        halves: Cells or centroids of both halves, of shape (2, m, d); None where not asked about.
    """

    model: dict[str, Tensor]
    members: ClusterSums | None = None
    halves: Tensor | None = None


@dataclass(frozen=True)
class Spreads(ClusterSums):
    """Sums over each cluster of distances and silhouettes, and one over all points.

    Attributes:
        scatter: Σ (z − μ)(z − μ)ᵀ, float64 of shape (d, d); (0, 0) where d is large. A client of
            fewer than d points adds none: products would tell in which directions these lie.
        scattered: How many points are in it, float64 of shape ().
    """

    scatter: Tensor
    scattered: Tensor

    @staticmethod
    def none(clusters: int, dimensions: int) -> "Spreads":
        """Return sums over nothing."""
        width = dimensions if dimensions <= MOST_DIMENSIONS else 0
        zeros = ClusterSums.zeros(clusters, _MEASURES)
        scatter = torch.zeros(width, width, dtype=torch.float64)
        return Spreads(zeros.sums, zeros.counts, scatter, scatter.sum())


@dataclass(frozen=True)
class Judged:
    """What the server knows of a clustering.

    Attributes:
        model: What clients assign their images by, packed.
        dimensions: Of the points.
        number: Of the clusters.
        members: Sums and numbers of each cluster's points; None before the first exchange.
        spreads: Sums of distances, silhouettes and offsets; None before the second one.
        halves: Cells, and then centroids, of both halves, (2, m, d); None where there are none.
        stability: How well either half predicts the other's clusters; None where it is not known.
    """

    model: dict[str, Tensor]
    dimensions: int
    number: int
    members: ClusterSums | None = None
    spreads: Spreads | None = None
    halves: Tensor | None = None
    stability: float | None = None

    @property
    def clusters(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Of clusters with images: means, numbers, and mean distances and silhouettes.

        None where there are fewer than two.
        """
        if self.members is None or self.spreads is None:
            return None
        there = (self.members.counts > 0) & (self.spreads.counts > 0)
        if int(there.sum()) <= 1:
            return None
        counts = self.spreads.counts[there]
        distances, silhouettes = self.spreads.sums[there].T / counts
        return means_of(self.members)[there], counts, distances, silhouettes

    @cached_property
    def typical(self) -> Typical | None:
        """Where the points lie; None before the exchanges, or where they have too many d."""
        members, spreads = self.members, self.spreads
        if members is None or spreads is None or not len(spreads.scatter):
            return None
        scattered = float(spreads.scattered)
        return Typical.of(means_of(members), members.counts, spreads.scatter, scattered)


def delivery_of(algorithm: ClusteringAlgorithm[Any], model: dict[str, Tensor]) -> Any:
    """Return what a system's clients assign their images by, from what it was packed to.

    Raises:
        RefusedUpdateError: It is another system's.
    """
    try:
        return unpack(algorithm.delivery_type, model)
    except PayloadError as error:
        raise RefusedUpdateError(str(error)) from error


def means_of(members: ClusterSums) -> Tensor:
    """Return the mean of each cluster's points, of shape (k, d); 0 for one without points."""
    return members.sums / members.counts.clamp(min=1).unsqueeze(1)


MEMBERS = Exchange("members", Question, ClusterSums, PARTS)
SPREADS = Exchange(
    "spreads",
    Question,
    Spreads,
    {**PARTS, "scatter": Sum(count="scattered"), "scattered": Count()},
    follows=True,
)
CELLS = Exchange("cells", Question, ClusterSums, PARTS, follows=True)
HALVES = Exchange("halves", Question, ClusterSums, PARTS, follows=True)
NAMES = MEMBERS.name, SPREADS.name, *[CELLS.name] * MOVES, HALVES.name
"""Names of the exchanges, in their order."""
