"""Metrics of a clustering without labels, from sums over all clients' images.

They take some exchanges after the last round. In the first, clients sum the points of each cluster,
which gives the clusters' means. In the second, they sum each point's distance to its cluster's
mean, its simplified silhouette, and the outer product of its offset from the mean, from which the
server estimates the distribution of the clusters (``mahalanobis``). The others test whether two
halves of the images have the same clusters (``CellsServerWork``). Points are what the system
clusters: latents, pixels or vectors; of unit length if they are assigned by cosine similarity.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.confidence import scale_for_distances
from ccfcpp.clustering.evaluation.server import (
    MOVES,
    CellsServerWork,
    EvaluationMessage,
    EvaluationState,
    HalvesServerWork,
    MembersServerWork,
    SpreadsServerWork,
    SpreadSums,
    means_of,
)
from ccfcpp.clustering.evaluation.summary_text import MEASURES
from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, SumOfClients, cluster_sums
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
    Update,
)
from ccfcpp.engine.payload import parametrize
from ccfcpp.engine.update_format import Count, Sum

_POINTS_AT_A_TIME = 4096
AnyMessage = EvaluationMessage[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class EvaluationClientWork(SumOfClients[AnyMessage, Update]):
    """Base class of the client side of the evaluation exchanges.

    Attributes:
        algorithm: The system whose clustering is evaluated.
        clusters: Number of clusters k.
    """

    algorithm: ClusteringAlgorithm[Any]
    clusters: int

    def _points(self, model: Any, client: Client) -> Tensor:
        points = self.algorithm.represent(model, client)
        assert points is not None
        return scale_for_distances(points, self.algorithm.by_angle)


class MembersClientWork(EvaluationClientWork[ClusterSums]):
    """Client side of exchange ``members``: the sum and number of points of each cluster."""

    def of_client(self, message: AnyMessage, client: Client, randomness: Randomness) -> ClusterSums:
        """Return the sum and number of a client's points by cluster; 0 if they are too few."""
        clusters = self.algorithm.assign_by_model(message.model, client)
        return self.cluster_sums(self._points(message.model, client), clusters, self.clusters)


class SpreadsClientWork(EvaluationClientWork[SpreadSums]):
    """Client side of exchange ``spreads``: sums of distances, silhouettes and outer products."""

    def of_client(self, message: AnyMessage, client: Client, randomness: Randomness) -> SpreadSums:
        """Return a client's sums, as ``SpreadSums`` tells; those over too few points are 0."""
        members = _required(message.members)
        points, k, least = self._points(message.model, client), self.clusters, self.context.least
        clusters = self.algorithm.assign_by_model(message.model, client)
        means = means_of(members).to(points.device)
        sizes = members.counts.to(points.device)
        # squared_distances centres the means; a zero row for an empty cluster would shift them.
        non_empty = sizes > 0
        means = torch.where(non_empty.unsqueeze(1), means, means[non_empty].mean(dim=0))
        in_scatter = clusters.bincount(minlength=k)[clusters] >= least
        in_scatter &= in_scatter.sum() >= points.shape[1]
        scatter = SpreadSums.none(k, points.shape[1]).scatter.to(points.device)
        rows = []
        for part in torch.split(torch.arange(len(points)).to(points.device), _POINTS_AT_A_TIME):
            labels, block = clusters[part], points[part].double()
            distances = squared_distances(block, means).sqrt()
            to_own = distances.gather(1, labels[:, None])[:, 0]
            silhouettes = simplified_silhouettes(distances, labels, sizes)
            rows.append(torch.stack([to_own, silhouettes], dim=1))
            if len(scatter):
                offsets = (block - means[labels])[in_scatter[part]]
                scatter += offsets.T @ offsets
        total = cluster_sums(torch.cat(rows), clusters, k, self.exchange, None, least)
        return SpreadSums(total.sums, total.counts, scatter, in_scatter.sum().double())


class CellsClientWork(EvaluationClientWork[ClusterSums]):
    """Client side of exchange ``cells``: sums of points by nearest cell (tentative centroid)."""

    def of_client(self, message: AnyMessage, client: Client, randomness: Randomness) -> ClusterSums:
        """Return the sum and number of a client's points in each half's cells; 0 if too few."""
        points, half, centres = self._by_halves(message, client, randomness)
        cells = half * centres.shape[1] + assign_within_half(points, half, centres)
        return self.cluster_sums(points, cells, centres.shape[:2].numel())

    def _by_halves(
        self, message: AnyMessage, client: Client, randomness: Randomness
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return a client's points, the half of each (0 or 1), and the centres of both halves.

        The split is the same in each exchange of a round.
        """
        points = self._points(message.model, client)
        source, odd = randomness.generator("halves"), len(client) % 2
        order = torch.randperm(len(client), generator=source)
        # If the number of images is odd, either half may get the additional one.
        half = (order + odd * torch.randint(2, (1,), generator=source)) % 2
        return points, half.to(points.device), _required(message.halves).to(points.device)


class HalvesClientWork(CellsClientWork):
    """Client side of exchange ``halves``: contingency tables of two clusterings of each half."""

    def of_client(self, message: AnyMessage, client: Client, randomness: Randomness) -> ClusterSums:
        """Count a half's points by the own (row) and the other's cluster (column); 0 if few."""
        points, half, centres = self._by_halves(message, client, randomness)
        halves, k, _ = centres.shape
        clusters = half * k + assign_within_half(points, half, centres)
        by_other = F.one_hot(assign_within_half(points, 1 - half, centres), k)
        found = self.cluster_sums(by_other, clusters, halves * k)
        kept = found.sums * (found.sums >= self.context.least)
        # The count of a row would tell what is left out of it.
        return replace(found, sums=kept, counts=kept.sum(dim=1))


def assign_within_half(points: Tensor, half: Tensor, centres: Tensor) -> Tensor:
    """Return each point's nearest centre among those of a given half, int64 of shape (samples,).

    Args:
        points: Points of shape (samples, d).
        half: Half whose centres each point is compared with, 0 or 1; int64 of shape (samples,).
        centres: Centres of both halves, of shape (2, m, d).
    """
    labels = torch.empty_like(half)
    for number, own in enumerate(centres):
        members = (half == number).nonzero().flatten()
        for part in blocks(members, own.numel()):
            labels[part] = assign_points(points[part].double(), own)
    return labels


def _required(part: T | None) -> T:
    if part is None:
        raise RefusedUpdateError("the message lacks the sums or centres that the exchange needs")
    return part


class ClusteringEpilogue(Epilogue):
    """The exchanges that evaluate a clustering without labels after the last round.

    Args:
        algorithm: The system whose clustering is evaluated.
        clusters: Number of clusters k.
    """

    def __init__(self, algorithm: ClusteringAlgorithm[Any], clusters: int) -> None:
        self.algorithm = algorithm
        self.clusters = clusters
        message: Any = parametrize(EvaluationMessage, algorithm.final_model_type)
        of_spreads = {**PARTS, "scatter": Sum(count="scattered"), "scattered": Count()}
        self.members = Exchange("members", message, ClusterSums, PARTS)
        self.spreads = Exchange("spreads", message, SpreadSums, of_spreads, follows=True)
        self.cells = Exchange("cells", message, ClusterSums, PARTS, follows=True)
        self.halves = Exchange("halves", message, ClusterSums, PARTS, follows=True)

    def begin(self, state: Any) -> EvaluationState | None:
        """Return the evaluation's initial state, from a run's last state; None without clusters."""
        centres = self.algorithm.centres(state) if self.algorithm.knows_clusters(state) else None
        if centres is None:
            return None
        number: Any = self.algorithm.summarize(state).get("clusters", self.clusters)
        return EvaluationState(self.algorithm.final_model(state), centres.shape[1], number)

    def works(self, known: EvaluationState) -> list[AnyServerWork]:
        """Return the server side of each evaluation exchange, in order."""
        k, d = self.clusters, known.dimensions
        return [
            MembersServerWork(self.members, ClusterSums.zeros(k, d)),
            SpreadsServerWork(self.spreads, SpreadSums.none(k, d)),
            *(CellsServerWork(self.cells, ends=left == 0) for left in reversed(range(MOVES))),
            HalvesServerWork(self.halves),
        ]

    def client_works(self, context: ClientContext) -> Mapping[str, AnyClientWork]:
        """Return the client side of each evaluation exchange, by the exchange's name."""
        own = context, self.algorithm, self.clusters
        return ClientSide.of(
            MembersClientWork(self.members, *own),
            SpreadsClientWork(self.spreads, *own),
            CellsClientWork(self.cells, *own),
            HalvesClientWork(self.halves, *own),
        ).works

    def describe(self, known: EvaluationState | None) -> dict[str, object]:
        """Return the summary's metrics and cluster sizes.

        Metrics are None if fewer than two clusters have points.
        """
        results: dict[str, Any] = dict.fromkeys(MEASURES)
        if known is None or known.members is None or known.spreads is None:
            return results
        results["cluster_sizes"] = known.members.counts[: known.number].round().int().tolist()
        results["clusters_found"] = sum(size > 0 for size in results["cluster_sizes"])
        if known.clusters is None:
            return results
        means, counts, distances, silhouettes = known.clusters
        return results | {
            "silhouette": float((counts * silhouettes).sum() / counts.sum()),
            "davies_bouldin": davies_bouldin(means, distances),
            "stability": known.stability,
        }
