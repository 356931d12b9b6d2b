"""Several initialisations of k-means, compared by sums over all clients; the best one is kept.

The result of k-means depends on its initial centroids. So several initialisations make some steps
of Lloyd's k-means, all of them in the same exchanges, and the one with the least squared error is
kept. Clients send the sums of a step once for each initialisation; the error follows from these.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    AnyInitState,
    ClusterSums,
    SumsWork,
    cluster_means,
    cluster_sums,
)
from ccfcpp.clustering.kmeans.chunks import SumBlocks
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Metrics
from ccfcpp.engine.payload import pack, sum_updates
from ccfcpp.engine.update_format import UpdateFormat, format_of

STEPS = 15
"""Lloyd steps after which the initialisations are compared."""
_ALIKE = 1e-9
"""Relative difference of variance below which initialisations are taken to have equal clusters."""


@dataclass(frozen=True)
class Trials:
    """Message to clients: centroids of each initialisation, float64 of shape (restarts, k, d)."""

    trials: Tensor


TRIALS = Exchange(
    "trials", Trials, ClusterSums, PARTS, images="an image is in the sums of each start"
)


@dataclass(frozen=True)
class SumTrials(SumBlocks[Trials, ClusterSums]):
    """Client side of exchange ``trials``: sums of points by cluster, for each initialisation.

    The sums of all initialisations are concatenated.

    Attributes:
        points: Function that maps images or vectors to points of shape (samples, d).
    """

    points: Callable[[Tensor], Tensor]
    exchange = TRIALS

    def width(self, message: Trials) -> int:
        """Return how many numbers are computed for a point: a distance to each of k centroids."""
        return message.trials.shape[1]

    def block(self, message: Trials, images: Tensor) -> ClusterSums:
        """Assign a block of images under each initialisation, and return the sums by cluster."""
        points = self.points(images)
        exact, trials = points.double(), message.trials.to(points.device)
        sums = [
            cluster_sums(exact, assign_points(points, trial), len(trial), TRIALS, None, least=0)
            for trial in trials
        ]
        return ClusterSums(torch.cat([x.sums for x in sums]), torch.cat([x.counts for x in sums]))


@dataclass(frozen=True)
class MoveTrials(SumsWork[AnyInitState, Trials, ClusterSums]):
    """Server side of exchange ``trials``: one step of k-means for each initialisation.

    Attributes:
        ends: Whether only the best initialisation is kept after the step.
    """

    ends: bool
    exchange = TRIALS

    def is_due(self, state: AnyInitState) -> bool:
        """Return whether there are initialisations to compare."""
        return state.trials is not None

    def broadcast(self, state: AnyInitState) -> Trials:
        """Return the message to clients: the centroids of each initialisation."""
        assert state.trials is not None
        return Trials(state.trials)

    def update_format(self, message: Trials) -> UpdateFormat:
        """Return an update's shapes and dtypes: sums and counts by initialisation and centroid."""
        return format_of(pack(ClusterSums.zeros(*message.trials.flatten(0, 1).shape)))

    def check(self, message: Trials, update: ClusterSums, senders: Sequence[Member]) -> None:
        """Check that the sums of each initialisation are possible for the senders' images."""
        restarts = len(message.trials)
        by_trial = zip(update.sums.chunk(restarts), update.counts.chunk(restarts), strict=True)
        for sums, counts in by_trial:
            super().check(message, ClusterSums(sums, counts), senders)

    def aggregate(
        self, state: AnyInitState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[AnyInitState, Metrics]:
        """Move all centroids; store those of the best initialisation as the state's centroids."""
        before, total = self.broadcast(state).trials, sum_updates(updates)
        moved = cluster_means([total], before.flatten(0, 1)).view_as(before)
        variances = between_cluster_variance(total, len(before))
        # The first of those with equal clusters, whose variances differ by rounding.
        best = (variances >= (1 - _ALIKE) * variances.max()).int().argmax()
        kept = None if self.ends else moved
        return replace(state, centroids=moved[int(best)], trials=kept), {}


def between_cluster_variance(total: ClusterSums, restarts: int) -> Tensor:
    """Return the variance between clusters, Σ n ‖c − m‖² / Σ n, of each initialisation.

    The sums are over clusters of n points with mean c; m is the mean of all points. This variance
    plus the mean squared error of k-means is the total variance of the points, so that the largest
    one has the least error. If clients do not send small clusters, this holds approximately.

    Args:
        total: Sums over each cluster of each initialisation, concatenated.
        restarts: Number of initialisations.

    Returns:
        float64 of shape (restarts,).
    """
    counts = total.counts.view(restarts, -1, 1)
    sums = total.sums.view(restarts, counts.shape[1], -1)
    samples = counts.sum(dim=1, keepdim=True).clamp(min=1)
    centred = sums - counts * (sums.sum(dim=1, keepdim=True) / samples)
    scatter = (centred.square() / counts.clamp(min=1)).sum(dim=(1, 2))
    variances: Tensor = scatter / samples.flatten()
    return variances
