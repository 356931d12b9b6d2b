"""The server's work in the exchanges that measure a clustering, and the resulting measures."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, SumsWork
from ccfcpp.clustering.kmeans.codebook import codebook_kmeans
from ccfcpp.clustering.mahalanobis import MOST_DIMENSIONS, SampleDistribution
from ccfcpp.core.metrics import prediction_strength
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import Exchange, Metrics
from ccfcpp.engine.payload import generic, pack, sum_updates
from ccfcpp.engine.update_format import Count, Sum, UpdateFormat, format_of

FinalModel = TypeVar("FinalModel")
_CELLS_OF_A_CLUSTER = 2
MOVES = 3
"""Exchanges in which the cells of halves move."""
_MEASURES = 2
"""Distance from the own mean, and silhouette."""


@dataclass(frozen=True)
class EvaluationMessage(Generic[FinalModel]):
    """The message to clients about a model that is measured.

    Attributes:
        model: What clients need to assign their images.
        members: Sums and counts of each cluster's points; None before they are known.
        halves: Cells or centroids of both halves, of shape (2, m, d); None if not needed.
    """

    model: FinalModel
    members: ClusterSums | None = None
    halves: Tensor | None = None


@dataclass(frozen=True)
class SpreadSums(ClusterSums):
    """Sums of distances and silhouettes over each cluster, and of offsets over all points.

    Attributes:
        scatter: Σ (z − μ)(z − μ)ᵀ, float64 of shape (d, d); (0, 0) if d is large. A client with
            fewer than d points adds none, since products would reveal the directions of these.
        scattered: Number of points in it, float64 of shape ().
    """

    scatter: Tensor
    scattered: Tensor

    @staticmethod
    def none(clusters: int, dimensions: int) -> "SpreadSums":
        """Return sums over no points."""
        width = dimensions if dimensions <= MOST_DIMENSIONS else 0
        zeros = ClusterSums.zeros(clusters, _MEASURES)
        scatter = torch.zeros(width, width, dtype=torch.float64)
        return SpreadSums(zeros.sums, zeros.counts, scatter, scatter.sum())


@dataclass(frozen=True)
class EvaluationState:
    """The server's state while a clustering is measured.

    Attributes:
        model: What clients need to assign their images.
        dimensions: Number of dimensions of the points.
        number: Number of clusters.
        members: Sums and counts of each cluster's points; None before the first exchange.
        spreads: Sums of distances, silhouettes and offsets; None before the second one.
        halves: Cells, and then centroids, of both halves, (2, m, d); None if there are none.
        stability: How well either half predicts the other's clusters; None if it is unknown.
    """

    model: Any
    dimensions: int
    number: int
    members: ClusterSums | None = None
    spreads: SpreadSums | None = None
    halves: Tensor | None = None
    stability: float | None = None

    @property
    def clusters(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Means, counts, mean distances and mean silhouettes of non-empty clusters.

        None if there are fewer than two.
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
    def typical(self) -> SampleDistribution | None:
        """The distribution of the points; None before the exchanges, or for too many d."""
        members, spreads = self.members, self.spreads
        if members is None or spreads is None or not len(spreads.scatter):
            return None
        scattered = float(spreads.scattered)
        return SampleDistribution.of(means_of(members), members.counts, spreads.scatter, scattered)


def means_of(members: ClusterSums) -> Tensor:
    """Return the mean of each cluster's points, of shape (k, d); 0 for one without points."""
    return members.sums / members.counts.clamp(min=1).unsqueeze(1)


NAMES = "members", "spreads", *["cells"] * MOVES, "halves"
"""Names of the exchanges, in their order."""


@dataclass(frozen=True)
class EvaluationExchanges:
    """The exchanges that measure a clustering."""

    members: Exchange[Any, ClusterSums]
    spreads: Exchange[Any, SpreadSums]
    cells: Exchange[Any, ClusterSums]
    halves: Exchange[Any, ClusterSums]

    @staticmethod
    def about(final_model: type[object]) -> "EvaluationExchanges":
        """Return the exchanges that ask clients about a delivery of some type."""
        asked: Any = generic(EvaluationMessage, final_model)
        of_spreads = {**PARTS, "scatter": Sum(count="scattered"), "scattered": Count()}
        return EvaluationExchanges(
            Exchange("members", asked, ClusterSums, PARTS),
            Exchange("spreads", asked, SpreadSums, of_spreads, follows=True),
            Exchange("cells", asked, ClusterSums, PARTS, follows=True),
            Exchange("halves", asked, ClusterSums, PARTS, follows=True),
        )


@dataclass(frozen=True)
class MembersServerWork(SumsWork[EvaluationState, EvaluationMessage[Any], ClusterSums]):
    """The server's work in the first exchange: it adds up what clients send.

    Attributes:
        exchange: The exchange in which the sums are sent.
        nothing: Sums over no points.
    """

    exchange: Exchange[Any, Any]
    nothing: ClusterSums

    def broadcast(self, state: EvaluationState) -> EvaluationMessage[Any]:
        """Return the message to clients: the model, and the clusters' sums if known."""
        return EvaluationMessage(state.model, state.members)

    def update_format(self, message: EvaluationMessage[Any]) -> UpdateFormat:
        """Return an update's shapes and dtypes: sums and counts by cluster and over all."""
        return format_of(pack(self.nothing))

    def aggregate(
        self, state: EvaluationState, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Add up all clients' sums, and store the totals in the state."""
        return replace(state, members=sum_updates(updates)), {}


class SpreadsServerWork(MembersServerWork):
    """The server's work in the second exchange, which is followed by those on halves."""

    def aggregate(
        self, state: EvaluationState, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Add up the sums of all clients, and place cells around the clusters' means."""
        known = replace(state, spreads=sum_updates(updates))
        if known.clusters is None:
            return known, {}
        means, _, distances, _ = known.clusters
        cells = initial_cells(means, distances, randomness.generator("cells of halves"))
        return replace(known, halves=cells), {}


def initial_cells(means: Tensor, spreads: Tensor, generator: torch.Generator) -> Tensor:
    """Return cells for both halves around the means of the clusters, of shape (2, 2k, d).

    Args:
        means: Tensor of shape (k, d).
        spreads: Mean distance of a cluster's points from its mean, (k,).
        generator: Draws the directions, on the CPU.
    """
    k, d = means.shape
    drawn = torch.randn(2, _CELLS_OF_A_CLUSTER, k, d, generator=generator, dtype=torch.float64)
    cells: Tensor = means + drawn.to(means) * (spreads / d**0.5).unsqueeze(1)
    return cells.flatten(1, 2)


@dataclass(frozen=True)
class CellsServerWork(SumsWork[EvaluationState, EvaluationMessage[Any], ClusterSums]):
    """The server's steps of k-means on halves of the images.

    Each client splits its images in two at random. For either half over all clients, the server
    makes centroids by k-means: of a codebook of two cells for each cluster, which sums over the
    half's images move a few times (``kmeans.start`` says why a codebook). Each image is then
    assigned by the centroids of both halves, and the two clusterings are compared.

    Attributes:
        exchange: The exchange in which the sums are sent.
        ends: Whether this is the last move, after which centroids are computed.
    """

    exchange: Exchange[Any, ClusterSums]
    ends: bool = False

    def is_due(self, state: EvaluationState) -> bool:
        """Return whether the state has codebooks of both halves."""
        return state.halves is not None

    def broadcast(self, state: EvaluationState) -> EvaluationMessage[Any]:
        """Return the message to clients: the model, and the cells of both halves."""
        return EvaluationMessage(state.model, halves=state.halves)

    def update_format(self, message: EvaluationMessage[Any]) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum and a count for each cell of both halves."""
        _, cells, dimensions = _known(message.halves).shape
        return format_of(pack(ClusterSums.zeros(2 * cells, dimensions)))

    def aggregate(
        self, state: EvaluationState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Move cells to their means, unless they have no images; with too few cells, give up."""
        total, cells = sum_updates(updates), _known(state.halves)
        counts = total.counts.view(cells.shape[:2])
        means = total.sums.view(cells.shape) / counts.clamp(min=1).unsqueeze(2)
        moved = torch.where(counts.unsqueeze(2) > 0, means, cells.to(means))
        if not self.ends:
            return replace(state, halves=moved), {}
        clusters = cells.shape[1] // _CELLS_OF_A_CLUSTER
        if bool(((counts > 0).sum(dim=1) < clusters).any()):
            return replace(state, halves=None), {}
        found = []
        for number, (own, weights) in enumerate(zip(moved, counts, strict=True)):
            there, seed = weights > 0, randomness.integer(f"centroids of half {number}")
            found.append(codebook_kmeans(own[there], weights[there], clusters, seed))
        return replace(state, halves=torch.stack(found)), {}


class HalvesServerWork(CellsServerWork):
    """The server's comparison of the clusters that both halves assign."""

    def update_format(self, message: EvaluationMessage[Any]) -> UpdateFormat:
        """Return an update's shapes and dtypes: counts of images by the clusters of both halves."""
        clusters = _known(message.halves).shape[1]
        return format_of(pack(ClusterSums.zeros(2 * clusters, clusters)))

    def aggregate(
        self, state: EvaluationState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Average the prediction strength of both halves; None if images are too few."""
        clusters = _known(state.halves).shape[1]
        tables = sum_updates(updates).sums.view(2, clusters, clusters)
        first, second = map(prediction_strength, tables)
        mean = None if first is None or second is None else (first + second) / 2
        return replace(state, stability=mean), {}


def _known(halves: Tensor | None) -> Tensor:
    assert halves is not None  # as ``is_due`` says
    return halves
