"""How good a clustering is, without labels: from sums over all clients' images alone.

After the last round there are some exchanges. In the first, clients add up the points of each
cluster, as in a step of Lloyd's k-means, which gives the clusters' means. In the second, they add
up each point's distance from the mean of its cluster, its simplified silhouette, and the products
of its offset's coordinates, of which the server makes what is typical of the clusters
(``ccfcpp.clustering.typical``). The others ask whether halves of the images have the same clusters
(``ccfcpp.clustering.halves``). Points are what the system clusters: latents, or pixels; of unit
length where images are assigned by angle.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.halves import (
    MOVES,
    CompareHalves,
    MoveHalves,
    first_cells,
    nearest_of_half,
)
from ccfcpp.clustering.judged import MEASURES
from ccfcpp.clustering.kmeans.blocks import squared_distances
from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, cluster_sums
from ccfcpp.clustering.typical import MOST_DIMENSIONS, Typical
from ccfcpp.core.metrics import davies_bouldin, simplified_silhouettes
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext, Epilogue
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyServerWork,
    ClientSide,
    Exchange,
    Figures,
    ServerWork,
    SummedWork,
    Task,
)
from ccfcpp.engine.parts import Count, Form, Sum, form_of
from ccfcpp.engine.payload import added_up, check_counts, pack

_POINTS_AT_A_TIME = 4096
_OF_SPREADS = {**PARTS, "scatter": Sum(count="scattered"), "scattered": Count()}
_MEASURES = 2
"""Distance from the own mean, and silhouette."""


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
        """Sums over nothing."""
        width = dimensions if dimensions <= MOST_DIMENSIONS else 0
        zeros = ClusterSums.zeros(clusters, _MEASURES)
        scatter = torch.zeros(width, width, dtype=torch.float64)
        return Spreads(zeros.sums, zeros.counts, scatter, scatter.sum())


@dataclass(frozen=True)
class Judged:
    """What the server knows of a clustering.

    Attributes:
        model: What clients assign their images by.
        dimensions: Of the points.
        number: Of the clusters.
        members: Sums and numbers of each cluster's points; None before the first exchange.
        spreads: Sums of distances, silhouettes and offsets; None before the second one.
        halves: Cells, and then centroids, of both halves, (2, m, d); None where there are none.
        stability: How well either half predicts the other's clusters; None where it is not known.
    """

    model: Any
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
        return _means(self.members)[there], counts, distances, silhouettes

    @cached_property
    def typical(self) -> Typical | None:
        """Where the points lie; None before the exchanges, or where they have too many d."""
        members, spreads = self.members, self.spreads
        if members is None or spreads is None or not len(spreads.scatter):
            return None
        scattered = float(spreads.scattered)
        return Typical.of(_means(members), members.counts, spreads.scatter, scattered)


class Judging(Epilogue):
    """The exchanges by which a clustering is judged.

    Args:
        algorithm: The system whose clustering it is.
        clusters: Number of clusters k.
    """

    def __init__(self, algorithm: ClusteringAlgorithm[Any], clusters: int) -> None:
        self.algorithm = algorithm
        self.clusters = clusters
        model = algorithm.delivery_type
        self.question: Any = make_dataclass(
            "Question", [("model", model), ("members", ClusterSums)], frozen=True
        )
        self.of_members = Exchange("members", model, ClusterSums, PARTS)
        both: Any = make_dataclass("Halves", [("model", model), ("halves", Tensor)], frozen=True)
        self.of_spreads: Exchange[Any, Spreads] = Exchange(
            "spreads", self.question, Spreads, _OF_SPREADS, follows=True
        )
        self.of_cells, self.of_halves = (
            Exchange(name, both, ClusterSums, PARTS, follows=True) for name in ("cells", "halves")
        )

    def begin(self, state: Any) -> Judged | None:
        """What is known before the exchanges; None where there are no clusters."""
        centres = self.algorithm.centres(state) if self.algorithm.knows_clusters(state) else None
        if centres is None:
            return None
        number: Any = self.algorithm.found(state).get("clusters", self.clusters)
        return Judged(self.algorithm.delivery(state), centres.shape[1], number)

    def works(self, known: Judged) -> list[AnyServerWork]:
        """Sums of the members, of what they are to their means, and over halves of them."""
        k, d = self.clusters, known.dimensions
        return [
            Adding(self.of_members, "members", ClusterSums.zeros(k, d)),
            Spreading(self.of_spreads, "spreads", Spreads.none(k, d)),
            *(MoveHalves(self.of_cells, ends=left == 0) for left in reversed(range(MOVES))),
            CompareHalves(self.of_halves),
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the exchanges, in the order of ``works``."""
        cells = [self.of_cells.name] * MOVES
        return self.of_members.name, self.of_spreads.name, *cells, self.of_halves.name

    def client_works(self, context: ClientContext) -> Mapping[str, AnyClientWork]:
        """The sums that clients send."""
        return ClientSide.of(
            Telling(self.of_members, self._members, context),
            Telling(self.of_spreads, self._spreads, context),
            Telling(self.of_cells, self._cells, context),
            Telling(self.of_halves, self._halves, context),
        ).works

    def describe(self, known: Judged | None) -> dict[str, object]:
        """The measures, which are None where fewer than two clusters have images, and sizes."""
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

    def _points(self, model: Any, client: Client) -> Tensor:
        points = self.algorithm.represent(model, client)
        assert points is not None
        return placed(points, self.algorithm.by_angle)

    def _members(
        self, message: Any, client: Client, context: ClientContext, own: Randomness
    ) -> ClusterSums:
        """Points, summed by their cluster."""
        clusters = self.algorithm.assign_delivered(message, client)
        points = self._points(message, client)
        return cluster_sums(
            points, clusters, self.clusters, self.of_members, context.bounding, context.least
        )

    def _cells(
        self, message: Any, client: Client, context: ClientContext, own: Randomness
    ) -> ClusterSums:
        """Points, summed by their cell among those of their half."""
        points, half, centres = self._by_halves(message, client, own)
        cells = half * centres.shape[1] + nearest_of_half(points, half, centres)
        count = centres.shape[:2].numel()
        return cluster_sums(points, cells, count, self.of_cells, context.bounding, context.least)

    def _halves(
        self, message: Any, client: Client, context: ClientContext, own: Randomness
    ) -> ClusterSums:
        """How images are assigned by the other half, summed by how they are by theirs."""
        points, half, centres = self._by_halves(message, client, own)
        both, k, _ = centres.shape
        clusters = half * k + nearest_of_half(points, half, centres)
        by_other = F.one_hot(nearest_of_half(points, 1 - half, centres), k)
        return cluster_sums(
            by_other, clusters, both * k, self.of_halves, context.bounding, context.least
        )

    def _by_halves(
        self, message: Any, client: Client, own: Randomness
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Points, the half of each, and the centres of both halves.

        A client's images are split alike in each exchange of a round.
        """
        points = self._points(message.model, client)
        source, odd = own.generator("halves"), len(client) % 2
        order = torch.randperm(len(client), generator=source)
        # The larger part of an odd number goes to either half.
        half = (order + odd * torch.randint(2, (1,), generator=source)) % 2
        return points, half.to(points.device), message.halves.to(points.device)

    def _spreads(
        self, message: Any, client: Client, context: ClientContext, own: Randomness
    ) -> Spreads:
        """What points are to the means of their clusters; too small clusters add 0."""
        points, k, least = self._points(message.model, client), self.clusters, context.least
        clusters = self.algorithm.assign_delivered(message.model, client)
        means = _means(message.members).to(points.device)
        sizes = message.members.counts.to(points.device)
        # Distances are exact around the mean of all rows: those of empty clusters must not move it.
        there = sizes > 0
        means = torch.where(there.unsqueeze(1), means, means[there].mean(dim=0))
        told = clusters.bincount(minlength=k)[clusters] >= least
        told &= told.sum() >= points.shape[1]
        scatter = Spreads.none(k, points.shape[1]).scatter.to(points.device)
        found = []
        for part in torch.split(torch.arange(len(points)).to(points.device), _POINTS_AT_A_TIME):
            at, here = clusters[part], points[part].double()
            apart = squared_distances(here, means).sqrt()
            near = apart.gather(1, at[:, None])[:, 0]
            found.append(torch.stack([near, simplified_silhouettes(apart, at, sizes)], dim=1))
            if len(scatter):
                offsets = (here - means[at])[told[part]]
                scatter += offsets.T @ offsets
        total = cluster_sums(torch.cat(found), clusters, k, self.of_spreads, None, least)
        return Spreads(total.sums, total.counts, scatter, told.sum().double())


@dataclass(frozen=True)
class Telling(SummedWork[Any, ClusterSums]):
    """Clients sum up what the server asks.

    Attributes:
        exchange: In which the sums are sent.
        told: From what came down, a client, the context and the client's randomness to its sums.
        context: What bounds an image's part, and the fewest images over which a sum is sent.
    """

    exchange: Exchange[Any, Any]
    told: Callable[[Any, Client, ClientContext, Randomness], ClusterSums]
    context: ClientContext

    def local_sum(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> ClusterSums:
        """Sum up over the clients."""
        return added_up(
            self.told(message, each, self.context, randomness.of_client(each.id))
            for each in clients
        )


def placed(points: Tensor, by_angle: bool) -> Tensor:
    """Points (samples, d) where a system judges them: of unit length if it assigns by angle."""
    return F.normalize(points.double(), dim=1) if by_angle else points


def _means(members: ClusterSums) -> Tensor:
    return members.sums / members.counts.clamp(min=1).unsqueeze(1)


@dataclass(frozen=True)
class Adding(ServerWork[Judged, Any, ClusterSums]):
    """The server's half: it adds up what clients send.

    Attributes:
        exchange: In which the sums are sent.
        part: Which part of what is known they become.
        nothing: Sums over nothing.
    """

    exchange: Exchange[Any, Any]
    part: str
    nothing: ClusterSums

    def broadcast(self, state: Judged) -> Any:
        """The model, and with it what is known of the clusters' members."""
        if state.members is None:
            return state.model
        return self.exchange.message(state.model, state.members)

    def form(self, message: Any) -> Form:
        """A sum and a number for each cluster, and for all."""
        return form_of(pack(self.nothing))

    def check(self, message: Any, update: ClusterSums, senders: Sequence[Member]) -> None:
        """Refuse numbers of images that clients do not hold."""
        check_counts(update.counts, senders)

    def aggregate(
        self, state: Judged, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Judged, Figures]:
        """The sums over all clients."""
        found: Any = {self.part: added_up(updates)}
        return replace(state, **found), {}


class Spreading(Adding):
    """The server's half of the second exchange, after which halves of the images are looked at."""

    def aggregate(
        self, state: Judged, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Judged, Figures]:
        """The sums over all clients, and cells around the clusters' means."""
        known, figures = super().aggregate(state, updates, randomness)
        if known.clusters is None:
            return known, figures
        means, _, distances, _ = known.clusters
        cells = first_cells(means, distances, randomness.generator("cells of halves"))
        return replace(known, halves=cells), figures
