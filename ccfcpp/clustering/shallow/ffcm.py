"""FFCM: federated fuzzy c-means.

Source: Stallmann and Wilbik, *Towards Federated Clustering: A Federated Fuzzy c-Means Algorithm
(FFCM)* (2022). In each round clients run fuzzy c-means from the global centroids and send their
centroids and the sums of their memberships; the server combines them, by one of two rules.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ccfcpp.clustering.ccfc.centroids import required_centroids
from ccfcpp.clustering.kmeans.fuzzy import fuzzy_c_means
from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.shallow.pixels import CentroidState, PixelRule
from ccfcpp.core.config import ClusterConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Exchange, Figures, RefusedUpdateError
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import check_same_shapes


@dataclass(frozen=True)
class FuzzyUpdate:
    """A client's fuzzy clusters.

    Attributes:
        centroids: float32 of shape (k, pixels), in the order of the global ones.
        supports: float64 of shape (k,): the sum of the client's memberships in each.
    """

    centroids: Tensor
    supports: Tensor


Combination = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""From centroids (clients, k, pixels), supports (clients, k), the global centroids so far and a
seed to new global centroids, each in the place of the one it follows."""


def support_weighted_mean(local: Tensor, supports: Tensor, before: Tensor, seed: int) -> Tensor:
    """FFCM-avg: index by index, each client by its support; without any a centroid stays."""
    weights = supports.unsqueeze(2)
    totals = weights.sum(dim=0)
    means = (weights * local.double()).sum(dim=0) / totals.clamp(min=torch.finfo(totals.dtype).tiny)
    return torch.where(totals > 0, means.to(before.dtype), before)


def clustered_centroids(local: Tensor, supports: Tensor, before: Tensor, seed: int) -> Tensor:
    """FFCM-km: k-means over all centroids that have support.

    The new centroids take the places of the old ones that they lie closest to (Hungarian method);
    an old one that none is left for stays.
    """
    with section("k-means: server"):
        found = kmeans(local[supports > 0], len(before), seed=seed).centroids.to(before.dtype)
    costs = torch.cdist(before, found).square().cpu().numpy()
    places, chosen = linear_sum_assignment(costs)
    moved = before.clone()
    moved[torch.as_tensor(places)] = found[torch.as_tensor(chosen)]
    return moved


@dataclass(frozen=True)
class FuzzyRound:
    """One exchange: global centroids go down, local centroids and supports come up."""

    config: ClusterConfig
    rule: PixelRule
    combine: Combination
    name = "fuzzy c-means"
    cohort = 1
    uses_memory = False
    travels = True

    def broadcast(self, state: CentroidState) -> CentroidState:
        """The global centroids."""
        return CentroidState(state.centroids)

    def local_updates(
        self, message: CentroidState, clients: Sequence[Client], randomness: Randomness
    ) -> list[FuzzyUpdate]:
        """Fuzzy c-means at each client, from the global centroids to convergence."""
        return [self._local(required_centroids(message.centroids), client) for client in clients]

    def _local(self, centroids: Tensor, client: Client) -> FuzzyUpdate:
        choices = self.config.fuzzy
        with section("fuzzy c-means: clients"):
            found = fuzzy_c_means(
                self.rule.points(client.images),
                centroids,
                m=choices.m,
                tolerance=choices.tolerance,
                iterations=choices.iterations,
            )
        return FuzzyUpdate(found.centroids, found.supports)

    def check(self, message: CentroidState, update: FuzzyUpdate) -> None:
        """Refuse centroids or supports of a wrong shape, and supports that none can have."""
        centroids = required_centroids(message.centroids)
        check_same_shapes(FuzzyUpdate(centroids, centroids[:, 0].double()), update, "fuzzy")
        if bool((update.supports < 0).any()) or float(update.supports.sum()) <= 0:
            raise RefusedUpdateError("supports must not be negative, nor all of them 0")

    def aggregate(
        self, state: CentroidState, updates: Iterable[FuzzyUpdate], randomness: Randomness
    ) -> tuple[CentroidState, Figures]:
        """Combine the local centroids; the figures say how far the global ones moved."""
        before = required_centroids(state.centroids)
        received = list(updates)
        local = torch.stack([update.centroids for update in received])
        supports = torch.stack([update.supports for update in received])
        seed = randomness.integer("k-means")
        centroids = self.combine(local, supports, before, seed)
        moved = float((centroids - before).abs().max())
        return CentroidState(centroids, moved), {"moved": moved}


class FFCM:
    """The algorithm.

    Args:
        config: The run's configuration.
        rule: How images become points.
        clusters: Number of clusters k.
        combine: What the server makes of the clients' centroids.
        device: Where the computation runs.
    """

    state_type = CentroidState

    def __init__(
        self,
        config: ClusterConfig,
        rule: PixelRule,
        clusters: int,
        combine: Combination,
        device: torch.device,
    ) -> None:
        self.config = config
        self.rule = rule
        self.clusters = clusters
        self.combine = combine
        self.device = device

    @property
    def rounds(self) -> int:
        """At most."""
        return self.config.ffcm.rounds

    def has_converged(self, state: CentroidState) -> bool:
        """Whether the global centroids have moved no further than the tolerance.

        Where clients may be absent, standing still says nothing: others may move them on.
        """
        if state.moved is None or self.config.availability.varies:
            return False
        return state.moved <= self.config.ffcm.tolerance

    def initial_state(self, randomness: Randomness) -> CentroidState:
        """Centroids drawn uniformly from [0, 1] in each coordinate."""
        shape = (self.clusters, self.rule.dimensions)
        drawn = torch.rand(shape, generator=randomness.generator("centroids"))
        return CentroidState(drawn.to(self.device))

    def exchanges(self, number: int, state: CentroidState) -> Sequence[Exchange[CentroidState]]:
        """One a round."""
        return [FuzzyRound(self.config, self.rule, self.combine)]

    def assign(self, state: CentroidState, holder: Client) -> Tensor:
        """The cluster of each image, int64 of shape (samples,)."""
        return self.rule.assign(holder.images, required_centroids(state.centroids))

    @property
    def by_angle(self) -> bool:
        """Whether images belong to the centroid of the nearest direction."""
        return self.rule.by_angle

    def represent(self, state: CentroidState, holder: Client) -> Tensor:
        """Images as points, of shape (samples, pixels)."""
        return self.rule.points(holder.images)

    def delivery(self, state: CentroidState) -> CentroidState:
        """The global centroids."""
        return CentroidState(state.centroids)

    def describe(self) -> dict[str, object]:
        """What a summary says of the system."""
        return {}
