"""How good a clustering is, without labels: from sums over all clients' images alone.

After the last round there are some exchanges. In the first, clients add up the points of each
cluster, as in a step of Lloyd's k-means, which gives the clusters' means. In the second, they add
up each point's distance from the mean of its cluster, its simplified silhouette, and the products
of its offset's coordinates, of which the server makes what is typical of the clusters
(``ccfcpp.clustering.typical``). The others ask whether halves of the images have the same clusters
(``ccfcpp.clustering.evaluation.halves``). Points are what the system clusters: latents, or pixels;
of unit length where images are assigned by angle.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.evaluation.clients import client_sums
from ccfcpp.clustering.evaluation.halves import CompareHalves, MoveHalves, first_cells
from ccfcpp.clustering.evaluation.messages import (
    MEMBERS,
    MOVES,
    SPREADS,
    Judged,
    Question,
    Spreads,
)
from ccfcpp.clustering.evaluation.words import MEASURES
from ccfcpp.clustering.kmeans.centroids import ClusterSums, SumsWork
from ccfcpp.core.metrics import davies_bouldin
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext, Epilogue
from ccfcpp.engine.exchange import AnyClientWork, AnyServerWork, ClientSide, Figures
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import added_up, pack


@dataclass(frozen=True)
class AddMembers(SumsWork[Judged, Question, ClusterSums]):
    """The server's half of the first exchange.

    Attributes:
        clusters: k.
        dimensions: d.
    """

    clusters: int
    dimensions: int
    exchange = MEMBERS

    def broadcast(self, state: Judged) -> Question:
        """Send the model."""
        return Question(state.model)

    def form(self, message: Question) -> Form:
        """Return a sum and a number for each cluster."""
        return form_of(pack(ClusterSums.zeros(self.clusters, self.dimensions)))

    def aggregate(
        self, state: Judged, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Judged, Figures]:
        """Add up over all clients."""
        return replace(state, members=added_up(updates)), {}


@dataclass(frozen=True)
class AddSpreads(SumsWork[Judged, Question, Spreads]):
    """The server's half of the second exchange, after which halves of the images are looked at.

    Attributes:
        clusters: k.
        dimensions: d.
    """

    clusters: int
    dimensions: int
    exchange = SPREADS

    def broadcast(self, state: Judged) -> Question:
        """Send the model, and the sums of the clusters' members."""
        return Question(state.model, state.members)

    def form(self, message: Question) -> Form:
        """Return a sum and a number for each cluster, and for all."""
        return form_of(pack(Spreads.none(self.clusters, self.dimensions)))

    def aggregate(
        self, state: Judged, updates: Iterable[Spreads], randomness: Randomness
    ) -> tuple[Judged, Figures]:
        """Add up over all clients, and place cells around the clusters' means."""
        known = replace(state, spreads=added_up(updates))
        if known.clusters is None:
            return known, {}
        means, _, distances, _ = known.clusters
        cells = first_cells(means, distances, randomness.generator("cells of halves"))
        return replace(known, halves=cells), {}


class ClusteringEpilogue(Epilogue):
    """The exchanges by which a clustering is judged.

    Args:
        algorithm: The system whose clustering it is.
        clusters: Number of clusters k.
    """

    def __init__(self, algorithm: ClusteringAlgorithm[Any], clusters: int) -> None:
        self.algorithm = algorithm
        self.clusters = clusters

    def begin(self, state: Any) -> Judged | None:
        """Return what is known before the exchanges; None where there are no clusters."""
        centres = self.algorithm.centres(state) if self.algorithm.knows_clusters(state) else None
        if centres is None:
            return None
        number: Any = self.algorithm.found(state).get("clusters", self.clusters)
        return Judged(pack(self.algorithm.delivery(state)), centres.shape[1], number)

    def works(self, known: Judged) -> list[AnyServerWork]:
        """Return sums of the members, of what they are to their means, and over halves of them."""
        return [
            AddMembers(self.clusters, known.dimensions),
            AddSpreads(self.clusters, known.dimensions),
            *(MoveHalves(ends=left == 0) for left in reversed(range(MOVES))),
            CompareHalves(),
        ]

    def client_works(self, context: ClientContext) -> Mapping[str, AnyClientWork]:
        """Return the sums that clients send."""
        return ClientSide.of(*client_sums(self.algorithm, self.clusters, context)).works

    def describe(self, known: Judged | None) -> dict[str, object]:
        """Return the measures, None where fewer than two clusters have images, and sizes."""
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
