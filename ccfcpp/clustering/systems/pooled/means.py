"""k-means and fuzzy c-means by sums over all clients.

Lloyd's step (*Least squares quantization in PCM*, 1982) moves each centroid to the mean of its
points, Bezdek's (*Pattern Recognition with Fuzzy Objective Function Algorithms*, 1981) to a mean
with weights uᵐ. Both need two sums alone, Σ w x and Σ w, which clients send. So every step is the
one of all points in one place, however they are divided, and no point travels.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.blocks import SumBlocks, squared_distances
from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    ClusterSums,
    SumsWork,
    cluster_means,
    cluster_sums,
    required_centroids,
)
from ccfcpp.clustering.kmeans.config import MembershipConfig
from ccfcpp.clustering.kmeans.fuzzy import memberships
from ccfcpp.clustering.kmeans.server import assigned
from ccfcpp.clustering.kmeans.start import SumCells
from ccfcpp.clustering.kmeans.trials import SumTrials
from ccfcpp.clustering.systems.pooled.config import MeansConfig
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, StartedBySums
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    Exchange,
    Figures,
    Images,
)
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import pack

Weighing = Callable[[Tensor, Tensor], Tensor]
"""Maps a block of points (samples, d) and centroids (k, d) to weights (samples, k), or to the one
centroid that each point counts for, int64 (samples,)."""

MEANS = Exchange("means", CentroidState, ClusterSums, PARTS, images=Images(largest={"counts": 1.0}))


@dataclass(frozen=True)
class PowersOfMemberships:
    """Weights of fuzzy c-means: uᵐ."""

    m: float

    def __call__(self, points: Tensor, centroids: Tensor) -> Tensor:
        """Weigh a block of points."""
        return memberships(squared_distances(points, centroids), self.m).double().pow(self.m)


@dataclass(frozen=True)
class SumWeighted(SumBlocks[CentroidState, ClusterSums]):
    """The clients' half: Σ w x and Σ w for each centroid."""

    points: Callable[[Tensor], Tensor]
    weights: Weighing
    exchange = MEANS

    def width(self, message: CentroidState, row: int) -> int:
        """A distance to each centroid."""
        return len(required_centroids(message.centroids))

    def block(self, message: CentroidState, images: Tensor) -> ClusterSums:
        """Weigh points, and add them up."""
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
    """The server's half: each centroid becomes the mean of its points.

    Attributes:
        least: The smallest sum of weights of which a mean is made.
    """

    least: float
    exchange = MEANS

    def broadcast(self, state: CentroidState) -> CentroidState:
        """The centroids."""
        return CentroidState(required_centroids(state.centroids))

    def form(self, message: CentroidState) -> Form:
        """A sum and a number for each centroid."""
        return form_of(pack(ClusterSums.zeros(*required_centroids(message.centroids).shape)))

    def aggregate(
        self, state: CentroidState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[CentroidState, Figures]:
        """A centroid without points stays; the figures report how far they moved."""
        before = required_centroids(state.centroids)
        centroids = cluster_means(updates, before, self.least)
        moved = float((centroids - before).abs().max())
        return replace(state, centroids=centroids, moved=moved), {"moved": moved}


class ExactMeans(StartedBySums[CentroidState]):
    """Centroids that move by exact steps, from a start that needs no points.

    Args:
        problem: The setting.
        weighing: Makes the weights of points.
        starts: How many are tried, where the configuration does not say.
        steps_of_a_round: How many steps a round has.
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
        """A state without centroids."""
        return CentroidState()

    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """A step in each round, or several; the first round has none of them."""
        left = self.config.rounds - 1 - (number - 1) * self.steps_of_a_round
        return [MoveMeans(self.least)] * min(self.steps_of_a_round, left)

    def client_side(self, context: ClientContext) -> ClientSide:
        """Sums for the start and for the steps."""
        points = self.rule.points
        trials = [SumTrials(context, points)] if self.starts > 1 else []
        return ClientSide.of(
            SumCells(context, points), *trials, SumWeighted(context, points, self.weights)
        )

    def has_converged(self, state: CentroidState) -> bool:
        """Whether the centroids have moved no further than the tolerance."""
        return self.is_settled(state.moved, self.config.tolerance)

    def assign(self, state: CentroidState, holder: Client) -> Tensor:
        """The nearest centroid of each sample, int64 of shape (samples,)."""
        centroids = required_centroids(state.centroids)
        parts = self.rule.blocks(holder.images, len(centroids))
        return torch.cat([assigned(part, centroids) for part in parts])


class ExactFuzzyMeans(ExactMeans):
    """Fuzzy c-means, which also tells how much a sample belongs to each cluster."""

    least = torch.finfo(torch.float64).tiny

    def probabilities(self, known: CentroidState, holder: Client) -> Tensor:
        """Memberships u, of shape (samples, k)."""
        centroids = required_centroids(known.centroids)
        m = self.problem.config.section(MembershipConfig).m
        parts = self.rule.blocks(holder.images, len(centroids))
        return torch.cat([memberships(squared_distances(part, centroids), m) for part in parts])


def hard(problem: Problem) -> Weighing:
    """The weights of k-means."""
    return assigned


def fuzzy(problem: Problem) -> Weighing:
    """The weights of fuzzy c-means."""
    return PowersOfMemberships(problem.config.section(MembershipConfig).m)
