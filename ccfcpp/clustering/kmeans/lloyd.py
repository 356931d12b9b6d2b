"""A step of Lloyd's k-means over all clients' samples, the same as if they were in one place."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import (
    ClusterSums,
    SumOfClients,
    SumsWork,
    cluster_means,
    required_centroids,
)
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, Message, Metrics
from ccfcpp.engine.payload import pack
from ccfcpp.engine.synchronised.contract import DescentState
from ccfcpp.engine.update_format import UpdateFormat, format_of
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class SumMembers(SumOfClients[Message, ClusterSums]):
    """Client side of a step of Lloyd's k-means: sums of the points of each cluster.

    Attributes:
        members: Function of a message and a client that returns the client's points, of shape
            (samples, d), their clusters, int64 of shape (samples,), and the number of clusters.
    """

    members: Callable[[Message, Client], tuple[Tensor, Tensor, int]]

    def of_client(self, message: Message, client: Client, randomness: Randomness) -> ClusterSums:
        """Return the sum and number of a client's points by cluster; 0 if they are too few."""
        return self.cluster_sums(*self.members(message, client))


@dataclass(frozen=True)
class EncoderState:
    """Server state with an encoder and centroids; its ``public`` part is the message to clients.

    Attributes:
        model: The global model: parameters and running statistics.
        version: Number of changes of the model so far.
        centroids: Global centroids of shape (at most m, latent dimensions); None before there are
            any.
        descent: Optimizer state of the training, which stays at the server.
        groups: Cluster of each of m ≥ k small clusters (over-clusters) and of its centroid, int64
            of shape (m,); None before the first merge into k clusters, or if nothing is merged.
        starts: Centroids of each initialisation, float64 of shape (starts, k, latent dimensions),
            while several are compared (``systems.ccfc.starts``).
        evidence: Evidence for each candidate number of clusters at the last merge, float64 of shape
            (candidates,), if k is chosen from the data. It stays at the server.
    """

    model: ModelState
    version: int = 0
    centroids: Tensor | None = None
    descent: DescentState | None = None
    groups: Tensor | None = None
    starts: Tensor | None = None
    evidence: Tensor | None = None

    @property
    def public(self) -> Self:
        """A copy to send to clients, without the optimizer state, the starts and the evidence."""
        return replace(self, descent=None, starts=None, evidence=None)

    @property
    def clusters(self) -> int:
        """Number of clusters k after small clusters (over-clusters) are merged."""
        assert self.groups is not None
        return int(self.groups.max()) + 1


Known = TypeVar("Known", bound=EncoderState)


@dataclass(frozen=True)
class MoveCentroids(SumsWork[Known, Known, ClusterSums]):
    """Server side of a step of Lloyd's k-means: each centroid moves to the mean of its points."""

    exchange: Exchange[Known, ClusterSums]

    def broadcast(self, state: Known) -> Known:
        """Return the message to clients: the model and the centroids."""
        return state.public

    def update_format(self, message: Known) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum and a count for each centroid."""
        return format_of(pack(ClusterSums.zeros(*required_centroids(message.centroids).shape)))

    def aggregate(
        self, state: Known, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Known, Metrics]:
        """Move each centroid to the mean of its points, unless it has none."""
        moved = cluster_means(updates, required_centroids(state.centroids))
        return replace(state, centroids=moved), {}
