"""k-FED: one-shot federated k-means of clients that hold few of the clusters each.

Source: Dennis, Li and Smith, *Heterogeneity for the Win: One-Shot Federated Clustering* (ICML
2021). Each client runs the k-means of Awasthi and Sheffet (2012) with k′ clusters; the server
spreads k centroids over all uploaded ones, farthest first, and clusters these once more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import check_near
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.server import Clustering, kmeans, own_points
from ccfcpp.clustering.shallow.config import KFedConfig
from ccfcpp.clustering.shallow.pixels import CentroidState, PixelClustering, PixelRule
from ccfcpp.core.errors import UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    ClientSide,
    ClientWork,
    Exchange,
    Figures,
    Nothing,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.parts import Form, Rows, Spec, Votes

_SEPARATION = 3
"""A point is kept where it lies so many times closer to one seed than to any other."""


def separated_kmeans(points: Tensor, k: int, *, seed: int, iterations: int) -> Clustering:
    """Lloyd's k-means from well separated starts (Awasthi and Sheffet 2012; k-FED, Algorithm 1).

    Points are projected on their top k singular vectors, without centring. Those that lie three
    times closer to one of k k-means++ seeds than to any other give, in all their dimensions, the
    means from which Lloyd's iterations start; a seed without such points stands for itself.

    Args:
        points: Float tensor of shape (samples, dimensions), at least one sample.
        k: Number of clusters. With no more than ``k`` points, each point is a cluster of its own.
        seed: Seed of the draw.
        iterations: Iterations at most.

    Returns:
        At most ``k`` clusters: one that no point belongs to is left out.

    Raises:
        ValueError: There is no point.
    """
    if len(points) == 0:
        raise ValueError("k-means needs at least one point")
    if len(points) <= k:
        return own_points(points)
    # Imported where it is needed: scikit-learn takes most of a second.
    from sklearn.cluster import kmeans_plusplus

    projected = _on_top_singular_vectors(points, k)
    _, chosen = kmeans_plusplus(
        projected.cpu().numpy(), k, random_state=seed % 2**32, n_local_trials=1
    )
    seeds = torch.from_numpy(chosen).to(points.device)
    starts = _means_of_separated(points, torch.cdist(projected, projected[seeds]), seeds)
    return kmeans(points, k, seed=seed, iterations=iterations, starts=starts)


def _on_top_singular_vectors(points: Tensor, k: int) -> Tensor:
    """Coordinates of the projection, float64 of shape (samples, at most k)."""
    # By the smaller of both Gram matrices, whose eigenvectors are the singular vectors.
    double = points.double()
    samples, dimensions = points.shape
    if dimensions <= samples:
        vectors: Tensor = torch.linalg.eigh(double.T @ double)[1]
        return double @ vectors[:, -k:]
    values, vectors = torch.linalg.eigh(double @ double.T)
    return torch.mul(vectors[:, -k:], values[-k:].clamp(min=0).sqrt())


def _means_of_separated(points: Tensor, distances: Tensor, seeds: Tensor) -> Tensor:
    """The mean of the points that lie much closer to one seed than to the others, for each.

    Args:
        points: Shape (samples, dimensions).
        distances: Of each point to each seed, shape (samples, k).
        seeds: The points that are the seeds, int64 of shape (k,).
    """
    nearest, labels = distances.min(dim=1)
    others = distances.scatter(1, labels.unsqueeze(1), torch.inf).amin(dim=1)
    kept = _SEPARATION * nearest <= others
    members = F.one_hot(labels, len(seeds)).double() * kept.unsqueeze(1)
    counts = members.sum(dim=0).unsqueeze(1)
    means = (members.T @ points.double() / counts.clamp(min=1)).to(points.dtype)
    # A seed keeps itself, but for one that coincides with another.
    return torch.where(counts > 0, means, points[seeds])


def farthest_first(points: Tensor, first: Tensor, k: int) -> Tensor:
    """Centroids from ``first`` on, each next one the point farthest from all before it.

    Args:
        points: Shape (samples, dimensions).
        first: Shape (at most k, dimensions).
        k: How many are wanted; there are fewer where no point is left that differs from them.

    Returns:
        Tensor of shape (at most k, dimensions).
    """
    chosen = first
    distances = torch.cdist(points, chosen, compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    while len(chosen) < k and float(distances.max()) > 0:
        farthest = points[distances.argmax()].unsqueeze(0)
        chosen = torch.cat([chosen, farthest])
        distances = torch.minimum(distances, (points - farthest).norm(dim=1))
    return chosen


@dataclass(frozen=True)
class LocalCentroids:
    """What a client sends.

    Attributes:
        centroids: float32 of shape (at most k', pixels).
    """

    centroids: Tensor


def local_centroids(partial: bool) -> Exchange[Nothing, LocalCentroids]:
    """The exchange; ``partial`` says that clients send fewer centroids than there are clusters."""
    return Exchange(
        "local centroids", Nothing, LocalCentroids, {"centroids": Votes(partial=partial)}
    )


@dataclass(frozen=True)
class SeparatedCentroids(ClientWork[Nothing, LocalCentroids]):
    """k-means with k′ clusters at each client.

    Attributes:
        exchange: In which they are sent.
        rule: How images become points.
        clusters: k′.
        iterations: Of k-means, at most.
        least: The fewest images over which a client sends a centroid.
    """

    exchange: Exchange[Nothing, LocalCentroids]
    rule: PixelRule
    clusters: int
    iterations: int
    least: int = 0

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[LocalCentroids | RefusedUpdateError]:
        """Each client's centroids, from well separated starts."""
        return [self._local(client, randomness.of_client(client.id)) for client in clients]

    def _local(self, client: Client, randomness: Randomness) -> LocalCentroids | RefusedUpdateError:
        with section("k-means: clients"):
            found = separated_kmeans(
                self.rule.points(client.images),
                self.clusters,
                seed=randomness.integer("k-means"),
                iterations=self.iterations,
            )
        enough = found.sizes >= self.least
        if not bool(enough.any()):
            return RefusedUpdateError(f"none of its clusters has {self.least} images")
        return LocalCentroids(found.centroids[enough])


class KFed(PixelClustering[CentroidState], ServerWork[CentroidState, Nothing, LocalCentroids]):
    """The algorithm, of a single round with a single exchange.

    Args:
        problem: What it is made for.

    Raises:
        UsageError: Clients are to find more clusters than there are.
    """

    state_type = CentroidState
    rounds = 1

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.iterations = problem.config.section(CentroidConfig).iterations
        self.local_clusters = problem.config.section(KFedConfig).local_clusters or problem.clusters
        if self.local_clusters > problem.clusters:
            raise UsageError(
                f"kfed.local_clusters = {self.local_clusters} is more than the {problem.clusters} "
                f"clusters: give at most {problem.clusters}"
            )
        self.exchange = local_centroids(partial=self.local_clusters < problem.clusters)

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """Without centroids."""
        return CentroidState()

    def exchanges(self, number: int, state: CentroidState) -> Sequence["KFed"]:
        """The one there is."""
        return [self]

    def client_side(self, crew: Crew) -> ClientSide:
        """Local centroids."""
        works = SeparatedCentroids(
            self.exchange, self.rule, self.local_clusters, self.iterations, crew.least
        )
        return ClientSide.of(works)

    def describe(self) -> dict[str, object]:
        """What a summary says of the system."""
        return {"local_clusters": self.local_clusters}

    def broadcast(self, state: CentroidState) -> Nothing:
        """Nothing: clients begin by themselves."""
        return Nothing()

    def form(self, message: Nothing) -> Form:
        """At most k′ centroids."""
        return {"centroids": Spec(torch.float32, (Rows(self.local_clusters), self.rule.dimensions))}

    def check(self, message: Nothing, update: LocalCentroids, senders: Sequence[Member]) -> None:
        """Refuse centroids that are far off."""
        check_near(update.centroids)

    def aggregate(
        self, state: CentroidState, updates: Iterable[LocalCentroids], randomness: Randomness
    ) -> tuple[CentroidState, Figures]:
        """Farthest-first from the centroids of the largest client, then k-means over all."""
        local = [update.centroids for update in updates]
        points = torch.cat(local)
        starts = farthest_first(points, local[0], self.problem.clusters)
        with section("k-means: server"):
            found = kmeans(
                points,
                len(starts),
                seed=randomness.integer("k-means"),
                iterations=self.iterations,
                starts=starts,
            )
        return CentroidState(found.centroids), {}
