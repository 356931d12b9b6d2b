"""k-FED: federated k-means in one round, for clients that have few of the clusters each.

Source: Dennis, Li and Smith, *Heterogeneity for the Win: One-Shot Federated Clustering* (ICML
2021). Each client runs the k-means of Awasthi and Sheffet (2012) with k′ clusters. The server runs
k-means on the clients' centroids; it starts from k of them that are far from each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import check_near
from ccfcpp.clustering.kmeans.config import LloydConfig
from ccfcpp.clustering.kmeans.server import Clustering, kmeans, mean_if_far, single_point_clusters
from ccfcpp.clustering.systems.shallow.config import KFedConfig
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, PixelClustering
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    ClientSide,
    EachClient,
    Exchange,
    Metrics,
    Nothing,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.update_format import Rows, Spec, UpdateFormat, Votes

_SEPARATION = 3
"""A point counts if it is this many times closer to one seed than to any other."""
_FAR = 1e5
"""Distance of the mean from the origin, in standard deviations, above which it is subtracted."""


def separated_kmeans(points: Tensor, k: int, *, seed: int, iterations: int) -> Clustering:
    """Run the local k-means of k-FED, Algorithm 1 (Awasthi and Sheffet 2012).

    Points are projected onto their top k singular vectors, without centring, and k-means++ draws k
    seeds. An initial centroid is the mean, in the original space, of the points that are three
    times closer to one seed than to any other; or the seed, if there are none. Lloyd's k-means
    follows.

    Args:
        points: Float tensor of shape (samples, dimensions), at least one sample.
        k: Number of clusters. With no more than ``k`` points, each point is its own cluster.
        seed: Seed of k-means++.
        iterations: Largest number of iterations.

    Returns:
        At most ``k`` clusters; empty clusters are left out.

    Raises:
        ValueError: There is no point.
    """
    if len(points) == 0:
        raise ValueError("k-means needs at least one point")
    if len(points) <= k:
        return single_point_clusters(points)
    # Imported here, since scikit-learn takes most of a second to import.
    from sklearn.cluster import kmeans_plusplus

    # Far from the origin, rounding in the Gram matrix would hide the differences of points.
    projected = _project_on_singular_vectors(points - mean_if_far(points, _FAR), k)
    _, chosen = kmeans_plusplus(
        projected.cpu().numpy(), k, random_state=seed % 2**32, n_local_trials=1
    )
    seeds = torch.from_numpy(chosen).to(points.device)
    initial = _separated_means(points, torch.cdist(projected, projected[seeds]), seeds)
    return kmeans(points, k, seed=seed, iterations=iterations, init=initial)


def _project_on_singular_vectors(points: Tensor, k: int) -> Tensor:
    """Project points onto their top k singular vectors: float64 (samples, at most k)."""
    # The eigenvectors of the smaller Gram matrix are the singular vectors.
    double = points.double()
    samples, dimensions = points.shape
    if dimensions <= samples:
        vectors: Tensor = torch.linalg.eigh(double.T @ double)[1]
        return double @ vectors[:, -k:]
    values, vectors = torch.linalg.eigh(double @ double.T)
    return torch.mul(vectors[:, -k:], values[-k:].clamp(min=0).sqrt())


def _separated_means(points: Tensor, distances: Tensor, seeds: Tensor) -> Tensor:
    """Return for each seed the mean of the points that are much closer to it than to others.

    ``distances`` (samples, k) are those to the seeds, whose indices are ``seeds`` (k,).
    """
    nearest, labels = distances.min(dim=1)
    others = distances.scatter(1, labels.unsqueeze(1), torch.inf).amin(dim=1)
    kept = _SEPARATION * nearest <= others
    members = F.one_hot(labels, len(seeds)).double() * kept.unsqueeze(1)
    counts = members.sum(dim=0).unsqueeze(1)
    means = (members.T @ points.double() / counts.clamp(min=1)).to(points.dtype)
    # Each seed counts its own point, unless it coincides with another seed.
    return torch.where(counts > 0, means, points[seeds])


def farthest_first(points: Tensor, first: Tensor, k: int) -> Tensor:
    """Choose k points far from each other: ``first``, then each time the farthest from the chosen.

    Args:
        points: Shape (points, dimensions).
        first: Points that are chosen at first, of shape (at least 1, dimensions).
        k: Largest number of points to choose.

    Returns:
        The chosen points, of shape (at most k, dimensions); all distinct after ``first``.
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
    """Centroids of a client's k′ local clusters, (at most k′, pixels), of ``PixelRule.dtype``."""

    centroids: Tensor


class KFed(PixelClustering[CentroidState], ServerWork[CentroidState, Nothing, LocalCentroids]):
    """k-FED: clients send local centroids once, and the server runs k-means on them.

    Raises:
        UsageError: ``kfed.local_clusters`` exceeds the number of clusters.
    """

    state_type = CentroidState
    rounds = 1

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.iterations = problem.config.section(LloydConfig).iterations
        self.local_clusters = problem.config.section(KFedConfig).local_clusters or problem.clusters
        if self.local_clusters > problem.clusters:
            raise UsageError(
                KeyValue("kfed.local_clusters", self.local_clusters),
                f" is more than the {problem.clusters} clusters: give at most {problem.clusters}",
            )
        parts = {"centroids": Votes(partial=self.local_clusters < problem.clusters)}
        self.exchange = Exchange("local centroids", Nothing, LocalCentroids, parts)

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """Return a state without centroids."""
        return CentroidState()

    def exchanges(self, number: int, state: CentroidState) -> Sequence["KFed"]:
        """Return the only exchange of the run, which this object carries out."""
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side: local k-means."""
        return ClientSide.of(EachClient(self.exchange, partial(self._local, context.least)))

    def _local(
        self, least: int, message: Nothing, client: Client, randomness: Randomness
    ) -> LocalCentroids | RefusedUpdateError:
        """Return the centroids of a client's clusters of at least so many images."""
        with section("k-means: clients"):
            clustering = separated_kmeans(
                self.rule.points(client.images),
                self.local_clusters,
                seed=randomness.integer("k-means"),
                iterations=self.iterations,
            )
        enough = clustering.sizes >= least
        if not bool(enough.any()):
            return RefusedUpdateError(f"none of its clusters has {least} images")
        return LocalCentroids(clustering.centroids[enough].to(self.rule.dtype))

    def describe(self) -> dict[str, object]:
        """Return what a summary of the run shows: the number of local clusters."""
        return {"local_clusters": self.local_clusters}

    def broadcast(self, state: CentroidState) -> Nothing:
        """Return an empty message."""
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        """Return an update's shapes and dtypes: at most ``local_clusters`` centroids."""
        shape = (Rows(self.local_clusters), self.rule.dimensions)
        return {"centroids": Spec(self.rule.dtype, shape)}

    def check(self, message: Nothing, update: LocalCentroids, senders: Sequence[Member]) -> None:
        """Refuse centroids that are too far from 0."""
        check_near(update.centroids)

    def aggregate(
        self, state: CentroidState, updates: Iterable[LocalCentroids], randomness: Randomness
    ) -> tuple[CentroidState, Metrics]:
        """Run k-means over all local centroids, from the result of ``farthest_first``.

        Its first points are the centroids of the largest client.
        """
        local = [update.centroids for update in updates]
        points = torch.cat(local)
        initial = farthest_first(points, local[0], self.problem.clusters)
        with section("k-means: server"):
            clustering = kmeans(
                points,
                len(initial),
                seed=randomness.integer("k-means"),
                iterations=self.iterations,
                init=initial,
            )
        return CentroidState(clustering.centroids), {}
