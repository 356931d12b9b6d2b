"""Several starts of k-means for the first centroids, of which one is chosen without labels.

Latents without correlations have many clusterings of nearly the same squared error, some of them
with two clusters for one class and one for two others; later rounds confirm whichever begins. So
starts are drawn from finer centroids of the clients, make steps of Lloyd's k-means over all images,
and the one with the largest mutual information of image and cluster goes on, as in regularised
information maximisation (Krause, Perona and Gomes, NeurIPS 2010): I = H(E[p]) - E[H(p)], with an
image's probabilities p = softmax(cosine similarities to the centroids / 0.1). It favours clusters
of equal size.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    CentroidUpdate,
    ClusterSums,
    SumOfClients,
    SumsWork,
    centroid_format,
    cluster_means,
    required_centroids,
)
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.clients import GlobalEncoderCentroids
from ccfcpp.clustering.systems.ccfc.messages import CENTROIDS
from ccfcpp.clustering.systems.ccfc.server import CentroidAggregation
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import AnyServerWork, Exchange, Metrics, RefusedUpdateError
from ccfcpp.engine.payload import check_counts, pack, sum_updates, unpack
from ccfcpp.engine.synchronised.contract import current_version
from ccfcpp.engine.update_format import Sum, UpdateFormat, format_of

STEPS = 15
"""Lloyd steps of each start."""
FINER = 5
"""Centroids that a client sends for each cluster: among one for each, starts hardly differ."""
TEMPERATURE = 0.1
"""Divisor of cosine similarities in the softmax. Half of it chooses alike, its double wrongly."""


@dataclass(frozen=True)
class StartSums(ClusterSums):
    """Sums over points, by start and cluster; those of all starts are concatenated.

    Attributes:
        shares: Sum of each cluster's probabilities, float64 of shape (starts · k,).
        entropies: Sum of the entropies of points' probabilities, float64 of shape (starts,).
    """

    shares: Tensor
    entropies: Tensor


FINE_CENTROIDS = replace(CENTROIDS, name="fine centroids")
STARTS = Exchange(
    "starts",
    EncoderState,
    StartSums,
    {**PARTS, "shares": Sum(), "entropies": Sum()},
    images="an image is in the sums of each start",
)


class FineCentroids(GlobalEncoderCentroids):
    """Client side of exchange ``fine centroids``: k-means with more clusters than k."""

    exchange = FINE_CENTROIDS


@dataclass(frozen=True)
class SumStarts(SumOfClients[EncoderState, StartSums]):
    """Client side of exchange ``starts``.

    Attributes:
        points: Returns a client's representations of length 1, (samples, d), by a message's model.
    """

    points: Callable[[EncoderState, Client], Tensor]

    def of_client(self, message: EncoderState, client: Client, randomness: Randomness) -> StartSums:
        """Return the sums over a client's images for each start."""
        points = self.points(message, client)
        exact = points.double()
        each = [
            pack(self._of_start(points, exact, F.normalize(start, dim=1).to(points)))
            for start in required_centroids(message.starts)
        ]
        return unpack(StartSums, {name: torch.cat([own[name] for own in each]) for name in each[0]})

    def _of_start(self, points: Tensor, exact: Tensor, centroids: Tensor) -> StartSums:
        similarities = points @ centroids.T
        sums = self.cluster_sums(exact, similarities.argmax(dim=1), len(centroids))
        # Sums over too few images are not sent.
        shown = len(points) >= self.context.least
        probabilities = (similarities / TEMPERATURE).softmax(dim=1) * shown
        entropies = torch.special.entr(probabilities).sum(dtype=torch.float64).view(1)
        shares = probabilities.sum(dim=0, dtype=torch.float64)
        return StartSums(sums.sums, sums.counts, shares, entropies)


class DrawStarts(CentroidAggregation):
    """Server side of exchange ``fine centroids``: each start is k-means of them from new seeds."""

    exchange = FINE_CENTROIDS

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: centroids of the finer clusters and their sizes."""
        return centroid_format(FINER * self.rule.clusters, self.latent)

    def aggregate(
        self, state: EncoderState, updates: Iterable[CentroidUpdate], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Draw the starts; the first one stays if no client sends sums."""
        starts = self.rule.starts(list(updates), randomness)
        after = replace(state, version=current_version(state), descent=None, starts=starts)
        return replace(after, centroids=starts[0]), {}


@dataclass(frozen=True)
class MoveStarts(SumsWork[EncoderState, EncoderState, StartSums]):
    """Server side of exchange ``starts``: a step of spherical k-means for each start.

    Attributes:
        ends: Whether only the chosen start is kept after the step.
    """

    ends: bool
    exchange = STARTS

    def is_due(self, state: EncoderState) -> bool:
        """Return whether there are starts to compare."""
        return state.starts is not None

    def broadcast(self, state: EncoderState) -> EncoderState:
        """Return the message to clients: the model, and the centroids of each start."""
        return replace(state.public, starts=state.starts)

    def update_format(self, message: EncoderState) -> UpdateFormat:
        """Return an update's shapes and dtypes: sums by start and cluster, and by start."""
        starts = required_centroids(message.starts)
        sums = starts.flatten(0, 1).double()
        return format_of(pack(StartSums(sums, sums[:, 0], sums[:, 0], starts[:, 0, 0].double())))

    def check(self, message: EncoderState, update: StartSums, senders: Sequence[Member]) -> None:
        """Check that the sums of each start are possible for the senders' images."""
        starts = len(update.entropies)
        highest = math.log(max(2, len(update.counts) // starts))
        images = sum(sender.samples for sender in senders)
        if not bool(((update.entropies >= 0) & (update.entropies <= highest * images + 0.5)).all()):
            raise RefusedUpdateError("its entropies are not those of its images")
        parts = (part.chunk(starts) for part in (update.sums, update.counts, update.shares))
        for sums, counts, shares in zip(*parts, strict=True):
            own = StartSums(sums, counts, shares, update.entropies)
            super().check(message, own, senders)
            check_counts(shares, senders)

    def aggregate(
        self, state: EncoderState, updates: Iterable[StartSums], randomness: Randomness
    ) -> tuple[EncoderState, Metrics]:
        """Move all centroids; store those of the start with the most information."""
        before, total = required_centroids(state.starts), sum_updates(updates)
        moved = cluster_means([total], before.flatten(0, 1)).view_as(before)
        best = int(information_by_start(total).argmax())
        return replace(state, centroids=moved[best], starts=None if self.ends else moved), {}


def information_by_start(total: StartSums) -> Tensor:
    """Return the mutual information I of image and cluster by each start, in nats: (starts,)."""
    shares = total.shares.view(len(total.entropies), -1)
    images = shares.sum(dim=1).clamp(min=1)
    marginal = torch.special.entr(shares / images.unsqueeze(1)).sum(dim=1)
    information: Tensor = marginal - total.entropies / images
    return information


def start_works(rule: CentroidRule, latent: int) -> list[AnyServerWork]:
    """Return the server side of the exchanges for the first centroids."""
    steps = [MoveStarts(ends=number == STEPS) for number in range(1, STEPS + 1)]
    return [DrawStarts(rule, latent), *steps]


def fine_rule(rule: CentroidRule) -> CentroidRule:
    """Return the rule of the clients' k-means that starts are drawn from."""
    once = rule.config.model_copy(update={"restarts": 1})
    return CentroidRule(once, FINER * rule.clusters)
