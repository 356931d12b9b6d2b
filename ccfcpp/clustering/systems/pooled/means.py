"""k-means and fuzzy c-means by sums over all clients.

Lloyd's step (*Least squares quantization in PCM*, 1982) moves each centroid to the mean of its
points, Bezdek's (*Pattern Recognition with Fuzzy Objective Function Algorithms*, 1981) to a mean
with weights uᵐ. Both need only two sums, Σ w x and Σ w, which clients send. So every step equals
the step on all points in one place, for every partition, and no point leaves a client.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

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
from ccfcpp.clustering.systems.pooled.config import MeansConfig
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, InitBySums
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

Weighing = Callable[[Tensor, Tensor], Tensor]
"""Maps a block of points (samples, d) and centroids (k, d) to weights (samples, k), or to the one
centroid that each point counts for, int64 (samples,)."""

MEANS = Exchange("means", CentroidState, ClusterSums, PARTS, images=Images(largest={"counts": 1.0}))


@dataclass(frozen=True)
class PowersOfMemberships:
    """Weights of points in fuzzy c-means: memberships to the power m, uᵐ."""

    m: float

    def __call__(self, points: Tensor, centroids: Tensor) -> Tensor:
        """Return uᵐ of a block of points, of shape (points, k)."""
        return memberships(squared_distances(points, centroids), self.m).double().pow(self.m)


@dataclass(frozen=True)
class SumWeighted(SumBlocks[CentroidState, ClusterSums]):
    """The clients' sums Σ w x and Σ w for each centroid."""

    points: Callable[[Tensor], Tensor]
    weights: Weighing
    exchange = MEANS

    def width(self, message: CentroidState, row: int) -> int:
        """Return how many numbers a point takes: a distance to each centroid."""
        return len(required_centroids(message.centroids))

    def block(self, message: CentroidState, images: Tensor) -> ClusterSums:
        """Sum the weighted points of a block, and their weights."""
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
    """The server's step: each centroid moves to the mean of its points.

    Attributes:
        least: The smallest sum of weights for which a centroid moves.
    """

    least: float
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
        """Move each centroid to its mean, unless it has no points; report the largest movement."""
        before = required_centroids(state.centroids)
        centroids = cluster_means(updates, before, self.least)
        moved = float((centroids - before).abs().max())
        return replace(state, centroids=centroids, moved=moved), {"moved": moved}


class ExactMeans(InitBySums[CentroidState]):
    """k-means or fuzzy c-means by sums over all clients, exactly as on all points together.

    Args:
        problem: Configuration, data shape, number of clusters and device.
        weighing: Makes the weights of points.
        starts: Number of initialisations, unless the configuration sets it.
        steps_of_a_round: Number of steps in a round.
    """

    state_type = CentroidState
    least: ClassVar[float] = 1.0

    def __init__(
        self,
        problem: Problem,
        weighing: Callable[[Problem], Weighing],
        starts: int = 1,
        steps_of_a_round: int = 1,
    ) -> None:
        super().__init__(problem)
        self.by_angle = False
        self.config = problem.config.section(MeansConfig)
        self.weights = weighing(problem)
        # With noise, each exchange would take a part of the budget.
        self.starts = 1 if problem.noisy else self.config.starts or starts
        self.steps_of_a_round = steps_of_a_round
        self.rounds = 1 - (-(self.config.rounds - 1) // steps_of_a_round)

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """Return a state without centroids."""
        return CentroidState()

    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """Return the steps of a round, of which the first round has none."""
        left = self.config.rounds - 1 - (number - 1) * self.steps_of_a_round
        return [MoveMeans(self.least)] * min(self.steps_of_a_round, left)

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work: sums for the start and for the steps."""
        points = self.rule.points
        trials = [SumTrials(context, points)] if self.starts > 1 else []
        return ClientSide.of(
            SumCells(context, points), *trials, SumWeighted(context, points, self.weights)
        )

    def has_converged(self, state: CentroidState) -> bool:
        """Return whether the centroids moved no further than the tolerance."""
        return self.is_settled(state.moved, self.config.tolerance)

    def assign(self, state: CentroidState, client: Client) -> Tensor:
        """Return the nearest centroid of each sample, int64 of shape (samples,)."""
        centroids = required_centroids(state.centroids)
        parts = self.rule.blocks(client.images, len(centroids))
        return torch.cat([assign_points(part, centroids) for part in parts])


class ExactFuzzyMeans(ExactMeans):
    """Fuzzy c-means by exact steps, with memberships as probabilities."""

    least = torch.finfo(torch.float64).tiny

    def probabilities(self, known: CentroidState, client: Client) -> Tensor:
        """Return the memberships u, of shape (samples, k)."""
        centroids = required_centroids(known.centroids)
        m = self.problem.config.section(MembershipConfig).m
        parts = self.rule.blocks(client.images, len(centroids))
        return torch.cat([memberships(squared_distances(part, centroids), m) for part in parts])


def hard(problem: Problem) -> Weighing:
    """Return the weights of k-means: 1 for the nearest centroid."""
    return assign_points


def fuzzy(problem: Problem) -> Weighing:
    """Return the weights of fuzzy c-means, uᵐ."""
    return PowersOfMemberships(problem.config.section(MembershipConfig).m)
