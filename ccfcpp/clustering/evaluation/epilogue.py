"""Measures of a clustering without labels, from sums over all clients' images alone.

After the last round there are some exchanges. In the first, clients add up the points of each
cluster, as in a step of Lloyd's k-means, which gives the clusters' means. In the second, they add
up each point's distance from the mean of its cluster, its simplified silhouette, and the outer
product of its offset, from which the server estimates the distribution of the clusters
(``mahalanobis``). The others test whether halves of the images have the same clusters
(``CellsServerWork``). Points are what the system clusters: latents, or pixels;
of unit length if images are assigned by angle.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.confidence import scale_for_distances
from ccfcpp.clustering.evaluation.server import (
    MOVES,
    CellsServerWork,
    EvaluationExchanges,
    EvaluationMessage,
    EvaluationState,
    HalvesServerWork,
    MembersServerWork,
    SpreadsServerWork,
    SpreadSums,
    means_of,
)
from ccfcpp.clustering.evaluation.summary_text import MEASURES
from ccfcpp.clustering.kmeans.centroids import ClusterSums, cluster_sums
from ccfcpp.clustering.kmeans.chunks import blocks, squared_distances
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.core.metrics import davies_bouldin, simplified_silhouettes
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext, Epilogue
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyServerWork,
    ClientSide,
    Exchange,
    RefusedUpdateError,
    SummedWork,
    Task,
)
from ccfcpp.engine.payload import sum_updates

_POINTS_AT_A_TIME = 4096
S = TypeVar("S", bound=ClusterSums)
T = TypeVar("T")


@dataclass(frozen=True)
class EvaluationClientWork(SummedWork[EvaluationMessage[Any], S], Generic[S]):
    """Base class of the clients' sums for these measures.

    Attributes:
        exchange: The exchange in which the sums are sent.
        algorithm: The system whose clustering is measured.
        clusters: Number of clusters k.
        context: Sets the bound on one image's contribution, and the fewest images in a sum.
    """

    exchange: Exchange[EvaluationMessage[Any], S]
    algorithm: ClusteringAlgorithm[Any]
    clusters: int
    context: ClientContext

    def local_sum(
        self,
        task: Task,
        message: EvaluationMessage[Any],
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> S:
        """Return the exchange's sums over some clients, by ``of_client``."""
        return sum_updates(
            self.of_client(message, each, randomness.of_client(each.id)) for each in clients
        )

    @abstractmethod
    def of_client(
        self, question: EvaluationMessage[Any], client: Client, randomness: Randomness
    ) -> S:
        """Return the exchange's sums over a client's images, assigned by the question's model."""

    def _points(self, model: Any, client: Client) -> Tensor:
        points = self.algorithm.represent(model, client)
        assert points is not None
        return scale_for_distances(points, self.algorithm.by_angle)

    def _sums(self, rows: Tensor, labels: Tensor, groups: int) -> ClusterSums:
        context = self.context
        return cluster_sums(rows, labels, groups, self.exchange, context.bounding, context.least)


class MembersClientWork(EvaluationClientWork[ClusterSums]):
    """Client side of the first exchange: sums of points by cluster."""

    def of_client(
        self, question: EvaluationMessage[Any], client: Client, randomness: Randomness
    ) -> ClusterSums:
        """Sum a client's points by cluster."""
        clusters = self.algorithm.assign_by_model(question.model, client)
        return self._sums(self._points(question.model, client), clusters, self.clusters)


class SpreadsClientWork(EvaluationClientWork[SpreadSums]):
    """The clients' sums of distances from their clusters' means; too small clusters add 0."""

    def of_client(
        self, question: EvaluationMessage[Any], client: Client, randomness: Randomness
    ) -> SpreadSums:
        """Sum a client's distances, silhouettes and outer products of offsets."""
        members = _required(question.members)
        points, k, least = self._points(question.model, client), self.clusters, self.context.least
        clusters = self.algorithm.assign_by_model(question.model, client)
        means = means_of(members).to(points.device)
        sizes = members.counts.to(points.device)
        # Distances are exact around the mean of all rows: those of empty clusters must not move it.
        there = sizes > 0
        means = torch.where(there.unsqueeze(1), means, means[there].mean(dim=0))
        told = clusters.bincount(minlength=k)[clusters] >= least
        told &= told.sum() >= points.shape[1]
        scatter = SpreadSums.none(k, points.shape[1]).scatter.to(points.device)
        found = []
        for part in torch.split(torch.arange(len(points)).to(points.device), _POINTS_AT_A_TIME):
            at, here = clusters[part], points[part].double()
            apart = squared_distances(here, means).sqrt()
            near = apart.gather(1, at[:, None])[:, 0]
            found.append(torch.stack([near, simplified_silhouettes(apart, at, sizes)], dim=1))
            if len(scatter):
                offsets = (here - means[at])[told[part]]
                scatter += offsets.T @ offsets
        total = cluster_sums(torch.cat(found), clusters, k, self.exchange, None, least)
        return SpreadSums(total.sums, total.counts, scatter, told.sum().double())


class CellsClientWork(EvaluationClientWork[ClusterSums]):
    """The clients' sums of points by their nearest cell, for both halves of the images."""

    def of_client(
        self, question: EvaluationMessage[Any], client: Client, randomness: Randomness
    ) -> ClusterSums:
        """Sum a client's points by cell."""
        points, half, centres = self._by_halves(question, client, randomness)
        cells = half * centres.shape[1] + assign_within_half(points, half, centres)
        return self._sums(points, cells, centres.shape[:2].numel())

    def _by_halves(
        self, question: EvaluationMessage[Any], client: Client, randomness: Randomness
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return points, the half of each, and the centres of both halves.

        A client's images are split in the same way in each exchange of a round.
        """
        points = self._points(question.model, client)
        source, odd = randomness.generator("halves"), len(client) % 2
        order = torch.randperm(len(client), generator=source)
        # The larger part of an odd number goes to either half.
        half = (order + odd * torch.randint(2, (1,), generator=source)) % 2
        return points, half.to(points.device), _required(question.halves).to(points.device)


class HalvesClientWork(CellsClientWork):
    """The clients' counts of images by cluster, under the centroids of both halves."""

    def of_client(
        self, question: EvaluationMessage[Any], client: Client, randomness: Randomness
    ) -> ClusterSums:
        """Count a client's images by the clusters that both halves assign."""
        points, half, centres = self._by_halves(question, client, randomness)
        both, k, _ = centres.shape
        clusters = half * k + assign_within_half(points, half, centres)
        by_other = F.one_hot(assign_within_half(points, 1 - half, centres), k)
        return self._sums(by_other, clusters, both * k)


def assign_within_half(points: Tensor, half: Tensor, centres: Tensor) -> Tensor:
    """Return the nearest centre of each point among those of one half, int64 of shape (samples,).

    Args:
        points: Tensor of shape (samples, d).
        half: The half whose centres are compared, 0 or 1 for each point, int64.
        centres: Centres of both halves, (2, m, d).
    """
    found = torch.empty_like(half)
    for number, own in enumerate(centres):
        there = (half == number).nonzero().flatten()
        for part in blocks(there, own.numel()):
            found[part] = assign_points(points[part].double(), own)
    return found


def _required(part: T | None) -> T:
    if part is None:
        raise RefusedUpdateError("the question does not say about what it is")
    return part


class ClusteringEpilogue(Epilogue):
    """The exchanges that measure a clustering after the last round.

    Args:
        algorithm: The system whose clustering is measured.
        clusters: Number of clusters k.
    """

    def __init__(self, algorithm: ClusteringAlgorithm[Any], clusters: int) -> None:
        self.algorithm = algorithm
        self.clusters = clusters
        self.exchanges = EvaluationExchanges.about(algorithm.final_model_type)

    def begin(self, state: Any) -> EvaluationState | None:
        """Return the initial state of the evaluation of a finished run; None without clusters."""
        centres = self.algorithm.centres(state) if self.algorithm.knows_clusters(state) else None
        if centres is None:
            return None
        number: Any = self.algorithm.summarize(state).get("clusters", self.clusters)
        return EvaluationState(self.algorithm.final_model(state), centres.shape[1], number)

    def works(self, known: EvaluationState) -> list[AnyServerWork]:
        """Return each exchange's server side: sums by cluster, of distances, and over halves."""
        of, k, d = self.exchanges, self.clusters, known.dimensions
        return [
            MembersServerWork(of.members, ClusterSums.zeros(k, d)),
            SpreadsServerWork(of.spreads, SpreadSums.none(k, d)),
            *(CellsServerWork(of.cells, ends=left == 0) for left in reversed(range(MOVES))),
            HalvesServerWork(of.halves),
        ]

    def client_works(self, context: ClientContext) -> Mapping[str, AnyClientWork]:
        """Return the client side of each exchange, by the exchange's name."""
        of, own = self.exchanges, (self.algorithm, self.clusters, context)
        return ClientSide.of(
            MembersClientWork(of.members, *own),
            SpreadsClientWork(of.spreads, *own),
            CellsClientWork(of.cells, *own),
            HalvesClientWork(of.halves, *own),
        ).works

    def describe(self, known: EvaluationState | None) -> dict[str, object]:
        """Return the measures, None if fewer than two clusters have images, and sizes."""
        found: dict[str, Any] = dict.fromkeys(MEASURES)
        if known is None or known.members is None or known.spreads is None:
            return found
        found["cluster_sizes"] = known.members.counts[: known.number].round().int().tolist()
        found["clusters_found"] = sum(size > 0 for size in found["cluster_sizes"])
        if known.clusters is None:
            return found
        means, counts, distances, silhouettes = known.clusters
        return found | {
            "silhouette": float((counts * silhouettes).sum() / counts.sum()),
            "davies_bouldin": davies_bouldin(means, distances),
            "stability": known.stability,
        }
