"""Server side of the exchanges that evaluate a clustering without labels, and their state."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import ClusterSums, SumsWork, check_products
from ccfcpp.clustering.kmeans.codebook import codebook_kmeans
from ccfcpp.clustering.mahalanobis import MOST_DIMENSIONS, SampleDistribution
from ccfcpp.core.metrics import prediction_strength
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Metrics
from ccfcpp.engine.payload import check_counts, pack, sum_updates
from ccfcpp.engine.update_format import UpdateFormat, format_of

FinalModel = TypeVar("FinalModel")
_CELLS_OF_A_CLUSTER = 2
MOVES = 3
"""Number of exchanges in which the cells of both halves of the images move."""
_MEASURES = 2
"""Numbers that are summed for a point: distance to its cluster's mean, and silhouette."""


@dataclass(frozen=True)
class EvaluationMessage(Generic[FinalModel]):
    """Message to clients in the evaluation of a clustering.

    Attributes:
        model: The final model, with which clients assign their images.
        members: Sum and number of each cluster's points over all clients; None before it is known.
        halves: Cells (``CellsServerWork``), or in the last exchange centroids, of both halves of
            the images, of shape (2, m, d); None if the exchange does not need them.
    """

    model: FinalModel
    members: ClusterSums | None = None
    halves: Tensor | None = None


@dataclass(frozen=True)
class SpreadSums(ClusterSums):
    """Sums of distances and silhouettes by cluster, (k, 2), and of outer products of all points.

    Attributes:
        scatter: Σ (z − μ)(z − μ)ᵀ over points z with cluster mean μ, float64 of shape (d, d), or
            (0, 0) if d > 1024. A client with fewer than d points adds nothing, since the products
            would reveal the directions of its points.
        scattered: Number of points in ``scatter``, float64 of shape ().
    """

    scatter: Tensor
    scattered: Tensor

    @staticmethod
    def none(clusters: int, dimensions: int) -> "SpreadSums":
        """Return zero sums and counts for a number of clusters and of dimensions."""
        width = dimensions if dimensions <= MOST_DIMENSIONS else 0
        zeros = ClusterSums.zeros(clusters, _MEASURES)
        scatter = torch.zeros(width, width, dtype=torch.float64)
        return SpreadSums(zeros.sums, zeros.counts, scatter, scatter.sum())


@dataclass(frozen=True)
class EvaluationState:
    """State of the server during the evaluation of a clustering, and its result.

    Attributes:
        model: The final model, with which clients assign their images.
        dimensions: Number of dimensions of the points.
        number: Number of clusters.
        members: Sum and number of each cluster's points; None before the first exchange.
        spreads: Sums of distances, silhouettes and outer products; None before the second exchange.
        halves: Cells (``CellsServerWork``), later centroids, of both halves of the images, of shape
            (2, m, d); None before there are any, or if there are too few images.
        stability: Prediction strength (Tibshirani and Walther 2005) between both halves, 1 is best;
            None if it is unknown.
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
        """Means (c, d), counts, mean distances and mean silhouettes (c,) of non-empty clusters.

        Distances are to the cluster's mean. None if fewer than two clusters have points.
        """
        if self.members is None or self.spreads is None:
            return None
        non_empty = (self.members.counts > 0) & (self.spreads.counts > 0)
        if int(non_empty.sum()) <= 1:
            return None
        counts = self.spreads.counts[non_empty]
        distances, silhouettes = self.spreads.sums[non_empty].T / counts
        return means_of(self.members)[non_empty], counts, distances, silhouettes

    @cached_property
    def typical(self) -> SampleDistribution | None:
        """Distribution of the points; None before the sums are known, or if d > 1024."""
        members, spreads = self.members, self.spreads
        if members is None or spreads is None or not len(spreads.scatter):
            return None
        scattered = float(spreads.scattered)
        return SampleDistribution.of(means_of(members), members.counts, spreads.scatter, scattered)


def means_of(members: ClusterSums) -> Tensor:
    """Return the mean of each cluster's points, of shape (k, d); 0 for an empty cluster."""
    return members.sums / members.counts.clamp(min=1).unsqueeze(1)


NAMES = "members", "spreads", *["cells"] * MOVES, "halves"
"""Names of the evaluation exchanges, in order."""


@dataclass(frozen=True)
class MembersServerWork(SumsWork[EvaluationState, EvaluationMessage[Any], ClusterSums]):
    """Server side of exchange ``members``: adds up the clients' sums over each cluster.

    Attributes:
        exchange: The exchange in which the sums are sent.
        nothing: Sums over no points: zeros in the shapes of an update.
    """

    exchange: Exchange[Any, Any]
    nothing: ClusterSums

    def broadcast(self, state: EvaluationState) -> EvaluationMessage[Any]:
        """Return the message to clients: the model, and the sums of ``members`` if known."""
        return EvaluationMessage(state.model, state.members)

    def update_format(self, message: EvaluationMessage[Any]) -> UpdateFormat:
        """Return an update's shapes and dtypes: those of sums over no points."""
        return format_of(pack(self.nothing))

    def aggregate(
        self, state: EvaluationState, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Add up all clients' sums, and store the totals in the state."""
        return replace(state, members=sum_updates(updates)), {}


class SpreadsServerWork(MembersServerWork):
    """Server side of exchange ``spreads``: adds up distances, silhouettes and outer products."""

    def check(self, message: Any, update: Any, senders: Sequence[Member]) -> None:
        """Refuse sums, counts and products that cannot be those of the senders' points."""
        super().check(message, update, senders)
        check_counts(update.scattered, senders)
        check_products(update.scatter, update.scattered)

    def aggregate(
        self, state: EvaluationState, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Add up the clients' sums; draw both halves' initial cells around the clusters' means."""
        after = replace(state, spreads=sum_updates(updates))
        if after.clusters is None:
            return after, {}
        means, _, distances, _ = after.clusters
        cells = initial_cells(means, distances, randomness.generator("cells of halves"))
        return replace(after, halves=cells), {}


def initial_cells(means: Tensor, spreads: Tensor, generator: torch.Generator) -> Tensor:
    """Draw two initial cells around each cluster's mean, for each of two halves of the images.

    Returns float64 of shape (2, 2k, d): the centres of the cells (``CellsServerWork``).

    Args:
        means: Mean of each cluster, of shape (k, d).
        spreads: Mean distance of each cluster's points to its mean, of shape (k,).
        generator: CPU generator of the random directions.
    """
    k, d = means.shape
    drawn = torch.randn(2, _CELLS_OF_A_CLUSTER, k, d, generator=generator, dtype=torch.float64)
    cells: Tensor = means + drawn.to(means) * (spreads / d**0.5).unsqueeze(1)
    return cells.flatten(1, 2)


@dataclass(frozen=True)
class CellsServerWork(SumsWork[EvaluationState, EvaluationMessage[Any], ClusterSums]):
    """Server side of exchange ``cells``: fits a clustering to each of two halves of the images.

    Each client splits its images at random into two halves. For each half, over all clients, the
    server keeps two cells per cluster: centres of small groups of points, as in
    ``kmeans.initialisation``. It moves each to the mean of its nearest points, and at last runs
    k-means on the cells. In exchange ``halves`` both halves' centroids then assign each image.

    Attributes:
        exchange: The exchange in which the sums are sent.
        ends: Whether this is the last move, after which centroids are computed.
    """

    exchange: Exchange[Any, ClusterSums]
    ends: bool = False

    def is_due(self, state: EvaluationState) -> bool:
        """Return whether the state has cells or centroids of both halves, which are needed."""
        return state.halves is not None

    def broadcast(self, state: EvaluationState) -> EvaluationMessage[Any]:
        """Return the message to clients: the model, and the cells of both halves."""
        return EvaluationMessage(state.model, halves=state.halves)

    def update_format(self, message: EvaluationMessage[Any]) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum and a count for each cell of both halves."""
        _, cells, dimensions = _required(message.halves).shape
        return format_of(pack(ClusterSums.zeros(2 * cells, dimensions)))

    def aggregate(
        self, state: EvaluationState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Move each cell to the mean of its points; at the end, run k-means on the cells.

        ``halves`` becomes None if a half has fewer non-empty cells than clusters.
        """
        total, cells = sum_updates(updates), _required(state.halves)
        counts = total.counts.view(cells.shape[:2])
        means = total.sums.view(cells.shape) / counts.clamp(min=1).unsqueeze(2)
        moved = torch.where(counts.unsqueeze(2) > 0, means, cells.to(means))
        if not self.ends:
            return replace(state, halves=moved), {}
        clusters = cells.shape[1] // _CELLS_OF_A_CLUSTER
        if bool(((counts > 0).sum(dim=1) < clusters).any()):
            return replace(state, halves=None), {}
        centroids = []
        for number, (own, weights) in enumerate(zip(moved, counts, strict=True)):
            non_empty, seed = weights > 0, randomness.integer(f"centroids of half {number}")
            centroids.append(codebook_kmeans(own[non_empty], weights[non_empty], clusters, seed))
        return replace(state, halves=torch.stack(centroids)), {}


class HalvesServerWork(CellsServerWork):
    """Server side of exchange ``halves``: compares the clusterings of both halves."""

    def update_format(self, message: EvaluationMessage[Any]) -> UpdateFormat:
        """Return an update's shapes and dtypes: a contingency table for each half."""
        clusters = _required(message.halves).shape[1]
        return format_of(pack(ClusterSums.zeros(2 * clusters, clusters)))

    def aggregate(
        self, state: EvaluationState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[EvaluationState, Metrics]:
        """Set ``stability`` to the mean of both halves' prediction strengths; None if unknown."""
        clusters = _required(state.halves).shape[1]
        tables = sum_updates(updates).sums.view(2, clusters, clusters)
        first, second = map(prediction_strength, tables)
        mean = None if first is None or second is None else (first + second) / 2
        return replace(state, stability=mean), {}


def _required(halves: Tensor | None) -> Tensor:
    assert halves is not None  # ``is_due`` checks it
    return halves
