"""FFCM: federated fuzzy c-means.

Source: Stallmann and Wilbik, *Towards Federated Clustering: A Federated Fuzzy c-Means Algorithm
(FFCM)* (2022). In each round each client runs fuzzy c-means from the global centroids, and sends
its centroids and their *supports*, the sums of its memberships. The server combines the centroids
by one of two functions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import check_near, required_centroids
from ccfcpp.clustering.kmeans.chunks import squared_distances
from ccfcpp.clustering.kmeans.config import LocalFuzzyConfig
from ccfcpp.clustering.kmeans.fuzzy import fuzzy_c_means
from ccfcpp.clustering.kmeans.initialisation import SumCells
from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.systems.shallow.config import FFCMConfig
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, InitBySums
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    EachClient,
    Exchange,
    Metrics,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.payload import check_counts, pack
from ccfcpp.engine.update_format import Count, UpdateFormat, Votes, format_of


@dataclass(frozen=True)
class FuzzyUpdate:
    """A client's fuzzy clusters, in the order of the global ones.

    Attributes:
        centroids: The client's centroids, of shape (k, pixels) and of ``PixelRule.dtype``.
        supports: Sum of the client's memberships in each cluster, float64 (k,).
    """

    centroids: Tensor
    supports: Tensor


Combination = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""Function of local centroids (clients, k, pixels), their supports (clients, k), the global
centroids and a seed that returns new global centroids in the same order."""


def support_weighted_mean(local: Tensor, supports: Tensor, before: Tensor, seed: int) -> Tensor:
    """Average the clients' centroids, weighted by their sums of memberships (FFCM-avg).

    Arguments are those of ``Combination``. A centroid without any support stays.
    """
    weights = supports.unsqueeze(2)
    totals = weights.sum(dim=0)
    means = (weights * local.double()).sum(dim=0) / totals.clamp(min=torch.finfo(totals.dtype).tiny)
    return torch.where(totals > 0, means.to(before.dtype), before)


def clustered_centroids(local: Tensor, supports: Tensor, before: Tensor, seed: int) -> Tensor:
    """Run k-means over all clients' centroids with support > 0 (FFCM-km); see ``Combination``.

    The Hungarian method matches new with old centroids; an old one without a match stays.
    """
    from scipy.optimize import linear_sum_assignment

    with section("k-means: server"):
        new = kmeans(local[supports > 0], len(before), seed=seed).centroids.to(before.dtype)
    costs = squared_distances(before, new).cpu().numpy()
    places, chosen = linear_sum_assignment(costs)
    moved = before.clone()
    moved[torch.as_tensor(places)] = new[torch.as_tensor(chosen)]
    return moved


FUZZY_ROUND = Exchange(
    "fuzzy c-means",
    CentroidState,
    FuzzyUpdate,
    {"centroids": Votes(weights="supports"), "supports": Count()},
)


def local_fuzzy_c_means(
    points: Tensor, centroids: Tensor, choices: LocalFuzzyConfig, least: int
) -> FuzzyUpdate:
    """Run a client's fuzzy c-means from the global centroids to convergence.

    In place of a centroid with a support below ``least``, the global one is sent, with support 0.

    Args:
        points: The client's points, of shape (samples, pixels).
        centroids: The global centroids, of shape (k, pixels).
        choices: Settings of fuzzy c-means.
        least: Smallest number of images in a centroid that is sent.
    """
    with section("fuzzy c-means: clients"):
        clustering = fuzzy_c_means(
            points,
            centroids.to(points),
            m=choices.m,
            tolerance=choices.tolerance,
            iterations=choices.iterations,
        )
    enough = torch.minimum(clustering.supports, clustering.averaged) >= least
    sent = torch.where(enough.unsqueeze(1), clustering.centroids.to(centroids), centroids)
    return FuzzyUpdate(sent, clustering.supports * enough)


class FFCM(InitBySums[CentroidState], ServerWork[CentroidState, CentroidState, FuzzyUpdate]):
    """FFCM: in each round clients run fuzzy c-means, and the server combines their centroids."""

    state_type = CentroidState
    exchange = FUZZY_ROUND

    def __init__(self, problem: Problem, combine: Combination) -> None:
        super().__init__(problem)
        self.choices = problem.config.section(FFCMConfig)
        self.combine = combine
        self.rounds = self.choices.rounds

    def has_converged(self, state: CentroidState) -> bool:
        """Return whether the global centroids moved by no more than the tolerance."""
        return self.is_settled(state.moved, self.choices.tolerance)

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """Return random centroids, uniform in [0, 1]; none for vectors, whose range is unknown."""
        if self.problem.has_vectors:
            return CentroidState()
        shape = (self.problem.clusters, self.rule.dimensions)
        drawn = torch.rand(shape, generator=randomness.generator("centroids"))
        return CentroidState(drawn.to(self.problem.device))

    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """Return the only exchange of a round, which this object carries out."""
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side: fuzzy c-means, and the initialisation for vectors."""
        own = EachClient(FUZZY_ROUND, partial(self._local, context.least))
        start = [SumCells(context, self.rule.points)] if self.problem.has_vectors else []
        return ClientSide.of(own, *start)

    def _local(
        self, least: int, message: CentroidState, client: Client, randomness: Randomness
    ) -> FuzzyUpdate:
        choices = self.problem.config.section(LocalFuzzyConfig)
        points, centroids = self.rule.points(client.images), required_centroids(message.centroids)
        return local_fuzzy_c_means(points, centroids, choices, least)

    def broadcast(self, state: CentroidState) -> CentroidState:
        """Return the message to clients: the global centroids."""
        return CentroidState(required_centroids(state.centroids).to(self.rule.dtype))

    def update_format(self, message: CentroidState) -> UpdateFormat:
        """Return an update's shapes and dtypes: k centroids and their sums of memberships."""
        centroids = required_centroids(message.centroids)
        return format_of(pack(FuzzyUpdate(centroids, centroids[:, 0].double())))

    def check(self, message: CentroidState, update: FuzzyUpdate, senders: Sequence[Member]) -> None:
        """Refuse supports that cannot be sums of memberships, and centroids too far from 0."""
        if bool((update.supports < 0).any()) or float(update.supports.sum()) <= 0:
            raise RefusedUpdateError("supports must not be negative, nor all of them 0")
        # The memberships of an image sum to 1.
        check_counts(update.supports, senders)
        check_near(update.centroids)

    def aggregate(
        self, state: CentroidState, updates: Iterable[FuzzyUpdate], randomness: Randomness
    ) -> tuple[CentroidState, Metrics]:
        """Combine the local centroids, and report how far the global ones moved."""
        before = required_centroids(state.centroids).to(self.rule.dtype)
        received = list(updates)
        local = torch.stack([update.centroids for update in received])
        supports = torch.stack([update.supports for update in received])
        seed = randomness.integer("k-means")
        centroids = self.combine(local, supports, before, seed)
        moved = float((centroids - before).abs().max())
        return CentroidState(centroids, moved=moved), {"moved": moved}
