"""Exact k-means and fuzzy c-means: each step needs only sums over all clients.

k-means (Lloyd, *Least squares quantization in PCM*, 1982) moves each centroid to the mean of its
points x. Fuzzy c-means (Bezdek, *Pattern Recognition with Fuzzy Objective Function Algorithms*,
1981) moves it to the mean of all points with weights w = uᵐ, for memberships u and a fuzzifier m.
Both need only the sums Σ w x and Σ w, which clients send. So every step equals the step on all
points in one place, and no point leaves a client.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    ClusterSums,
    SumsWork,
    cluster_means,
    cluster_sums,
    required_centroids,
)
from ccfcpp.clustering.kmeans.chunks import SumBlocks, squared_distances
from ccfcpp.clustering.kmeans.config import MembershipConfig
from ccfcpp.clustering.kmeans.fuzzy import memberships
from ccfcpp.clustering.kmeans.initialisation import SumCells
from ccfcpp.clustering.kmeans.restarts import SumTrials
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.clustering.systems.pooled.config import MeansConfig, PrototypesConfig
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, InitBySums
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    Exchange,
    Images,
    Metrics,
)
from ccfcpp.engine.payload import pack
from ccfcpp.engine.update_format import UpdateFormat, format_of

MEANS = Exchange("means", CentroidState, ClusterSums, PARTS, images=Images(largest={"counts": 1.0}))


@dataclass(frozen=True)
class SumWeighted(SumBlocks[CentroidState, ClusterSums]):
    """Client side of a step: sums Σ w x and Σ w over points x with weights w, for each centroid.

    Attributes:
        points: Function that maps images or vectors to points of shape (samples, d).
        weights: ``ExactMeans.weights``.
    """

    points: Callable[[Tensor], Tensor]
    weights: Callable[[Tensor, Tensor], Tensor]
    exchange = MEANS

    def width(self, message: CentroidState) -> int:
        """Return how many numbers a point needs in memory: a distance to each centroid."""
        return len(required_centroids(message.centroids))

    def block(self, message: CentroidState, images: Tensor) -> ClusterSums:
        """Return the sums over a block of a client's images or vectors."""
        centroids, points = required_centroids(message.centroids), self.points(images)
        weights, bounding = self.weights(points, centroids), self.context.bounding
        if weights.ndim == 1:
            return cluster_sums(points, weights, len(centroids), MEANS, bounding, least=0)
        points, counts = points.double(), weights
        if bounding is not None:
            points = bounding.rows(MEANS, "sums", points)
            counts = bounding.rows(MEANS, "counts", weights)
        return ClusterSums(weights.T @ points, counts.sum(dim=0))


@dataclass(frozen=True)
class MoveMeans(SumsWork[CentroidState, CentroidState, ClusterSums]):
    """Server side of a step: moves each centroid to the mean of its points.

    Attributes:
        least: Smallest possible sum of weights of a cluster that has points.
        vectors: Settings of vectors whose centroids have modes of categories; None: means alone.
    """

    least: float
    vectors: VectorsConfig | None = None
    exchange = MEANS

    def broadcast(self, state: CentroidState) -> CentroidState:
        """Return the message to clients: the centroids."""
        return CentroidState(required_centroids(state.centroids))

    def update_format(self, message: CentroidState) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum and a count for each centroid."""
        return format_of(pack(ClusterSums.zeros(*required_centroids(message.centroids).shape)))

    def aggregate(
        self, state: CentroidState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[CentroidState, Metrics]:
        """Move each centroid to the mean of its points, unless it has none; report how far."""
        before = required_centroids(state.centroids)
        centroids = cluster_means(updates, before, self.least)
        if self.vectors is not None:
            centroids = with_modes(self.vectors, centroids)
        moved = float((centroids - before).abs().max())
        return replace(state, centroids=centroids, moved=moved), {"moved": moved}


def with_modes(vectors: VectorsConfig, centroids: Tensor) -> Tensor:
    """Replace each centroid's shares of a column's categories by the most frequent category.

    It is the update of k-prototypes (Huang, *Extensions to the k-means algorithm for clustering
    large data sets with categorical values*, 1998). Of equally frequent categories the first wins.

    Args:
        vectors: Settings of the vectors, with columns of categories.
        centroids: Means of clusters, of shape (k, d); the last columns are those of categories.
    """
    columns = len(centroids), -1, vectors.most_categories
    shares = centroids[:, -vectors.slots :].reshape(columns)
    modes = F.one_hot(shares.argmax(dim=2), vectors.most_categories) * (shares > 0)
    slots = modes.to(centroids) * (vectors.category_weight or 1.0)
    return torch.cat([centroids[:, : -vectors.slots], slots.flatten(1)], dim=1)


class ExactMeans(InitBySums[CentroidState]):
    """Fed-KM: k-means, with the result that pooled data would give.

    Args:
        problem: Configuration, data shape, number of clusters and device.
        starts: Number of initialisations, unless the configuration sets it.
        steps_per_round: Number of steps in a round.
    """

    state_type = CentroidState
    least: ClassVar[float] = 1.0

    def __init__(self, problem: Problem, starts: int = 1, steps_per_round: int = 1) -> None:
        super().__init__(problem)
        self.by_angle = False
        self.config = problem.config.section(MeansConfig)
        # With noise, the exchanges of each initialisation would spend some of the privacy budget.
        self.starts = 1 if problem.noisy else self.config.starts or starts
        self.steps_per_round = steps_per_round
        has_modes = isinstance(self.config, PrototypesConfig) and self.config.modes
        self.vectors = problem.config.section(VectorsConfig) if has_modes else None
        self.rounds = 1 - (-(self.config.rounds - 1) // steps_per_round)

    def weights(self, points: Tensor, centroids: Tensor) -> Tensor:
        """Return weights of points (samples, d) for centroids (k, d), of shape (samples, k).

        Or the index of each point's only centroid, int64 of shape (samples,): here the nearest.
        """
        return assign_points(points, centroids)

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """Return a state without centroids."""
        return CentroidState()

    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """Return the steps of a round; the first round only computes initial centroids."""
        left = self.config.rounds - 1 - (number - 1) * self.steps_per_round
        return [MoveMeans(self.least, self.vectors)] * min(self.steps_per_round, left)

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side of the initialisation and of the steps."""
        points = self.rule.points
        trials = [SumTrials(context, points)] if self.starts > 1 else []
        return ClientSide.of(
            SumCells(context, points), *trials, SumWeighted(context, points, self.weights)
        )

    def has_converged(self, state: CentroidState) -> bool:
        """Return whether the centroids moved by no more than the tolerance in the last round."""
        return self.is_settled(state.moved, self.config.tolerance)

    def assign(self, state: CentroidState, client: Client) -> Tensor:
        """Return the nearest centroid of each sample, int64 of shape (samples,)."""
        centroids = required_centroids(state.centroids)
        parts = self.rule.blocks(client.images, len(centroids))
        return torch.cat([assign_points(part, centroids) for part in parts])


class ExactFuzzyMeans(ExactMeans):
    """Fed-FCM: ``ExactMeans`` with fuzzy weights, and with memberships as probabilities."""

    least = torch.finfo(torch.float64).tiny

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.m = problem.config.section(MembershipConfig).m

    def weights(self, points: Tensor, centroids: Tensor) -> Tensor:
        """Return memberships to the power of the fuzzifier, uᵐ, float64 of shape (samples, k)."""
        return memberships(squared_distances(points, centroids), self.m).double().pow(self.m)

    def probabilities(self, known: CentroidState, client: Client) -> Tensor:
        """Return the memberships u of a client's samples, of shape (samples, k)."""
        centroids = required_centroids(known.centroids)
        parts = self.rule.blocks(client.images, len(centroids))
        distances = (squared_distances(part, centroids) for part in parts)
        return torch.cat([memberships(each, self.m) for each in distances])
