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
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.exact.config import MeansConfig
from ccfcpp.clustering.kmeans.blocks import assigned, blocks, squared_distances
from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    ClusterSums,
    cluster_means,
    required_centroids,
)
from ccfcpp.clustering.kmeans.config import FuzzyConfig
from ccfcpp.clustering.kmeans.fuzzy import memberships
from ccfcpp.clustering.kmeans.start import SumCells
from ccfcpp.clustering.shallow.pixels import CentroidState
from ccfcpp.clustering.shallow.started import StartedBySums
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    Exchange,
    Figures,
    Images,
    ServerWork,
    SummedWork,
    Task,
)
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import added_up, pack

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
class SumWeighted(SummedWork[CentroidState, ClusterSums]):
    """The clients' half: Σ w x and Σ w for each centroid."""

    points: Callable[[Tensor], Tensor]
    weights: Weighing
    crew: Crew
    exchange = MEANS

    def local_sum(
        self, task: Task, message: CentroidState, clients: Sequence[Client], randomness: Randomness
    ) -> ClusterSums:
        """Sums over the points of some clients, a block at a time."""
        centroids = required_centroids(message.centroids)
        with section("means: clients"):
            return added_up(self._of(centroids, client.images) for client in clients)

    def _of(self, centroids: Tensor, images: Tensor) -> ClusterSums:
        total = ClusterSums.zeros(*centroids.shape)
        total = ClusterSums(total.sums.to(centroids.device), total.counts.to(centroids.device))
        for part in blocks(images, max(images[:1].numel(), len(centroids))):
            points = self.points(part)
            block = self._block(self.weights(points, centroids), points.double(), len(centroids))
            total = added_up([total, block])
        enough = total.counts >= self.crew.least
        return ClusterSums(total.sums * enough.unsqueeze(1), total.counts * enough)

    def _block(self, weights: Tensor, points: Tensor, clusters: int) -> ClusterSums:
        bounding = self.crew.bounding
        if weights.ndim == 1 and bounding is None:
            # A product with ones and zeros would take several times as long.
            sums = points.new_zeros(clusters, points.shape[1]).index_add_(0, weights, points)
            return ClusterSums(sums, torch.bincount(weights, minlength=clusters).double())
        if weights.ndim == 1:
            weights = F.one_hot(weights, clusters).double()
        counts = weights
        if bounding is not None:
            points = bounding.rows(MEANS, "sums", points)
            counts = bounding.rows(MEANS, "counts", weights)
        return ClusterSums(weights.T @ points, counts.sum(dim=0))


@dataclass(frozen=True)
class MoveMeans(ServerWork[CentroidState, CentroidState, ClusterSums]):
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

    def mended(self, message: CentroidState, update: ClusterSums) -> ClusterSums:
        """With noise there may be negative counts: they become 0."""
        return replace(update, counts=update.counts.clamp(min=0))

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
    """

    state_type = CentroidState
    least: ClassVar[float] = 1.0

    def __init__(self, problem: Problem, weighing: Callable[[Problem], Weighing]) -> None:
        super().__init__(problem)
        self.by_angle = False
        self.config = problem.config.section(MeansConfig)
        self.weights = weighing(problem)
        self.rounds = self.config.rounds

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """A state without centroids."""
        return CentroidState()

    def steps(self) -> Sequence[AnyServerWork]:
        """A step in each round."""
        return [MoveMeans(self.least)]

    def client_side(self, crew: Crew) -> ClientSide:
        """Sums for the start and for the steps."""
        points = self.rule.exact_points
        return ClientSide.of(SumCells(points, crew), SumWeighted(points, self.weights, crew))

    def has_converged(self, state: CentroidState) -> bool:
        """Whether the centroids have moved no further than the tolerance.

        Where clients may be absent, it is always False: other clients may still move them.
        """
        if state.moved is None or self.problem.config.availability.varies:
            return False
        return state.moved <= self.config.tolerance

    def assign(self, state: CentroidState, holder: Client) -> Tensor:
        """The nearest centroid of each sample, int64 of shape (samples,)."""
        centroids = required_centroids(state.centroids)
        return torch.cat([assigned(part, centroids) for part in self._points(holder, centroids)])

    def _points(self, holder: Client, centroids: Tensor) -> Iterable[Tensor]:
        width = max(holder.images[:1].numel(), len(centroids))
        return map(self.rule.exact_points, blocks(holder.images, width))

    def represent(self, state: CentroidState, holder: Client) -> Tensor | None:
        """The points, of shape (samples, d); None before there are centroids."""
        return None if state.centroids is None else self.rule.exact_points(holder.images)


class ExactFuzzyMeans(ExactMeans):
    """Fuzzy c-means, which also tells how much a sample belongs to each cluster."""

    least = torch.finfo(torch.float64).tiny

    def probabilities(self, known: CentroidState, holder: Client) -> Tensor:
        """Memberships u, of shape (samples, k)."""
        centroids = required_centroids(known.centroids)
        m = self.problem.config.section(FuzzyConfig).m
        return torch.cat(
            [
                memberships(squared_distances(part, centroids), m)
                for part in self._points(holder, centroids)
            ]
        )


def hard(problem: Problem) -> Weighing:
    """The weights of k-means."""
    return assigned


def fuzzy(problem: Problem) -> Weighing:
    """The weights of fuzzy c-means."""
    return PowersOfMemberships(problem.config.section(FuzzyConfig).m)
