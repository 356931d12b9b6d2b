"""How good a clustering is, without labels: from sums over all clients' images alone.

After the last round there are some exchanges. In the first, clients add up the points of each
cluster, as in a step of Lloyd's k-means, which gives the clusters' means. In the second, they add
up each point's distance from the mean of its cluster, and its simplified silhouette. The others ask
whether halves of the images have the same clusters (``ccfcpp.clustering.halves``). Points are what
the system clusters: latents, or pixels; of unit length where images are assigned by angle.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.halves import (
    MOVES,
    CompareHalves,
    MoveHalves,
    SumHalves,
    first_cells,
    own_and_other,
)
from ccfcpp.clustering.judged import MEASURES
from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums
from ccfcpp.clustering.kmeans.lloyd import SumMembers
from ccfcpp.core.metrics import davies_bouldin, simplified_silhouettes
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew, Epilogue
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyServerWork,
    ClientSide,
    Exchange,
    Figures,
    ServerWork,
)
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import added_up, check_counts, pack

_POINTS_AT_A_TIME = 4096
_MEASURES = 2
"""Distance from the own mean, and silhouette."""


@dataclass(frozen=True)
class Judged:
    """What the server knows of a clustering.

    Attributes:
        model: What clients assign their images by.
        dimensions: Of the points.
        members: Sums and numbers of each cluster's points; None before the first exchange.
        spreads: Sums over each cluster of distances and silhouettes; None before the second one.
        halves: Cells, and then centroids, of both halves, (2, m, d); None where there are none.
        stability: How well either half predicts the other's clusters; None where it is not known.
    """

    model: Any
    dimensions: int
    members: ClusterSums | None = None
    spreads: ClusterSums | None = None
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
        self.of_spreads = self._follows("spreads", self.question)
        self.of_cells, self.of_halves = self._follows("cells", both), self._follows("halves", both)

    @staticmethod
    def _follows(name: str, message: Any) -> Exchange[Any, ClusterSums]:
        return Exchange(name, message, ClusterSums, PARTS, follows=True)

    def begin(self, state: Any) -> Judged | None:
        """What is known before the exchanges; None where there are no clusters."""
        centres = self.algorithm.centres(state) if self.algorithm.knows_clusters(state) else None
        if centres is None:
            return None
        return Judged(self.algorithm.delivery(state), centres.shape[1])

    def works(self, known: Judged) -> list[AnyServerWork]:
        """Sums of the members, of what they are to their means, and over halves of them."""
        return [
            Adding(self.of_members, "members", self.clusters, known.dimensions),
            Spreading(self.of_spreads, "spreads", self.clusters, _MEASURES),
            *(MoveHalves(self.of_cells, ends=left == 0) for left in reversed(range(MOVES))),
            CompareHalves(self.of_halves),
        ]

    def client_works(self, crew: Crew) -> Mapping[str, AnyClientWork]:
        """The sums that clients send."""
        members = SumMembers(self.of_members, self._points, crew)
        spreads = SumMembers(self.of_spreads, self._measures, crew)
        cells = SumHalves(self.of_cells, self._cells, crew)
        halves = SumHalves(self.of_halves, self._halves, crew)
        return ClientSide.of(members, spreads, cells, halves).works

    def describe(self, known: Judged | None) -> dict[str, object]:
        """The measures, which are None where fewer than two clusters have images, and sizes."""
        found: dict[str, object] = dict.fromkeys(MEASURES)
        if known is None or known.members is None or known.spreads is None:
            return found
        found["cluster_sizes"] = known.members.counts.round().int().tolist()
        if known.clusters is None:
            return found
        means, counts, distances, silhouettes = known.clusters
        return found | {
            "silhouette": float((counts * silhouettes).sum() / counts.sum()),
            "davies_bouldin": davies_bouldin(means, distances),
            "stability": known.stability,
        }

    def _points(self, message: Any, client: Client) -> tuple[Tensor, Tensor, int]:
        points = self.algorithm.represent(message, client)
        assert points is not None
        if self.algorithm.by_angle:
            points = F.normalize(points.double(), dim=1)
        return points, self.algorithm.assign_delivered(message, client), self.clusters

    def _measures(self, message: Any, client: Client) -> tuple[Tensor, Tensor, int]:
        """Each image's distance from its cluster's mean, and its silhouette: (samples, 2)."""
        points, clusters, _ = self._points(message.model, client)
        means = _means(message.members).to(points.device)
        sizes = message.members.counts.to(points.device)
        found = []
        pairs = zip(
            torch.split(points, _POINTS_AT_A_TIME),
            torch.split(clusters, _POINTS_AT_A_TIME),
            strict=True,
        )
        for part, own in pairs:
            apart = torch.cdist(part.double(), means, compute_mode="donot_use_mm_for_euclid_dist")
            near = apart.gather(1, own[:, None])[:, 0]
            found.append(torch.stack([near, simplified_silhouettes(apart, own, sizes)], dim=1))
        return torch.cat(found), clusters, self.clusters

    def _cells(self, message: Any, client: Client, half: Tensor) -> tuple[Tensor, Tensor, int]:
        """Points, and the cell of each among those of its half."""
        points, own, _ = self._by_halves(message, client, half)
        return points, own, 2 * message.halves.shape[1]

    def _halves(self, message: Any, client: Client, half: Tensor) -> tuple[Tensor, Tensor, int]:
        """How images are assigned by the other half, ones of shape (samples, k), and by theirs."""
        _, own, other = self._by_halves(message, client, half)
        k = message.halves.shape[1]
        return F.one_hot(other, k), own, 2 * k

    def _by_halves(
        self, message: Any, client: Client, half: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Points, the number of the nearest centre of their own half, and that of the other's."""
        points, _, _ = self._points(message.model, client)
        own, other = own_and_other(points.double(), half, message.halves.to(points.device))
        return points, half * message.halves.shape[1] + own, other


def _means(members: ClusterSums) -> Tensor:
    return members.sums / members.counts.clamp(min=1).unsqueeze(1)


@dataclass(frozen=True)
class Adding(ServerWork[Judged, Any, ClusterSums]):
    """The server's half: it adds up what clients send.

    Attributes:
        exchange: In which the sums are sent.
        part: Which part of what is known they become.
        clusters: Number of clusters k.
        width: Numbers in the sum of a cluster.
    """

    exchange: Exchange[Any, ClusterSums]
    part: str
    clusters: int
    width: int

    def broadcast(self, state: Judged) -> Any:
        """The model, and with it what is known of the clusters' members."""
        if state.members is None:
            return state.model
        return self.exchange.message(state.model, state.members)

    def form(self, message: Any) -> Form:
        """A sum and a number for each cluster."""
        return form_of(pack(ClusterSums.zeros(self.clusters, self.width)))

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
