"""Several initialisations of k-means, compared by sums over all clients; the best continues.

The result of k-means depends on its start. So several starts move for some steps, all of them in
one exchange, and the one with the least squared error continues. Clients send the same sums as in
any step of k-means, once for each start: the error needs nothing else.
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
from ccfcpp.engine.exchange import AnyServerWork, Exchange, Metrics
from ccfcpp.engine.payload import pack, sum_updates
from ccfcpp.engine.update_format import UpdateFormat, format_of

STEPS = 15
"""Lloyd steps after which the initialisations are compared."""
_ALIKE = 1e-9
"""Largest relative difference of variance between initialisations with the same clusters."""


@dataclass(frozen=True)
class Trials:
    """The centroids of each initialisation: float64 of shape (starts, k, d)."""

    trials: Tensor


TRIALS = Exchange(
    "trials", Trials, ClusterSums, PARTS, images="an image is in the sums of each start"
)


@dataclass(frozen=True)
class SumTrials(SumBlocks[Trials, ClusterSums]):
    """The clients' sums and counts of each start's clusters, one start after another.

    Attributes:
        points: Maps images or vectors to points, of shape (samples, d).
    """

    points: Callable[[Tensor], Tensor]
    exchange = TRIALS

    def width(self, message: Trials, row: int) -> int:
        """Return how many numbers a point takes: a distance to each centroid of a start."""
        return message.trials.shape[1]

    def block(self, message: Trials, images: Tensor) -> ClusterSums:
        """Assign a block of points to the nearest centroid of each start, and sum them."""
        points = self.points(images)
        exact, trials = points.double(), message.trials.to(points.device)
        each = [
            cluster_sums(exact, assign_points(points, trial), len(trial), TRIALS, None, least=0)
            for trial in trials
        ]
        return ClusterSums(torch.cat([x.sums for x in each]), torch.cat([x.counts for x in each]))


@dataclass(frozen=True)
class MoveTrials(SumsWork[AnyInitState, Trials, ClusterSums]):
    """The server's step: the centroids of each start move to the means of their points.

    Attributes:
        ends: Whether the best start is chosen after the step.
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
        """Return an update's shapes and dtypes: sums and counts by start and centroid."""
        return format_of(pack(ClusterSums.zeros(*message.trials.flatten(0, 1).shape)))

    def check(self, message: Trials, update: ClusterSums, senders: Sequence[Member]) -> None:
        """Refuse sums that cannot be those of the senders' images, start by start."""
        starts = len(message.trials)
        each = zip(update.sums.chunk(starts), update.counts.chunk(starts), strict=True)
        for sums, counts in each:
            super().check(message, ClusterSums(sums, counts), senders)

    def aggregate(
        self, state: AnyInitState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[AnyInitState, Metrics]:
        """Move the centroids of each start, and note the best; at the end keep only that."""
        before, total = self.broadcast(state).trials, sum_updates(updates)
        moved = cluster_means([total], before.flatten(0, 1)).view_as(before)
        scatter = between_cluster_variance(total, len(before))
        # The first of those that came to the same clusters, which differ by rounding.
        best = (scatter >= (1 - _ALIKE) * scatter.max()).int().argmax()
        kept = None if self.ends else moved
        return replace(state, centroids=moved[int(best)], trials=kept), {}


def between_cluster_variance(total: ClusterSums, starts: int) -> Tensor:
    """Return the variance between clusters, Σ n ‖c − m‖² / Σ n, of each start.

    Each cluster has n points with mean c, and m is the mean of all points. With the mean squared
    error, Σ ‖x − c‖² / Σ n, it adds up to the same for every start. If clients do not send small
    clusters, starts are over slightly different points, and this holds approximately.

    Args:
        total: Sums of all clusters of the starts, one start after another.
        starts: Number of starts.

    Returns:
        float64 of shape (starts,).
    """
    counts = total.counts.view(starts, -1, 1)
    sums = total.sums.view(starts, counts.shape[1], -1)
    samples = counts.sum(dim=1, keepdim=True).clamp(min=1)
    about = sums - counts * (sums.sum(dim=1, keepdim=True) / samples)
    found: Tensor = (about.square() / counts.clamp(min=1)).sum(dim=(1, 2)) / samples.flatten()
    return found


def trial_works() -> list[AnyServerWork]:
    """Return the server's steps that compare the initialisations."""
    return [MoveTrials(step == STEPS) for step in range(1, STEPS + 1)]
