"""What the server of Fed-SCAN does beside the steps: in the end it finds the clusters' centres."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.clustering.scan.messages import CENTRES, LatentSums, ScanState, Snapshot
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Figures, ServerWork
from ccfcpp.engine.payload import added_up, check_same_shapes, pack


def snapshot(state: ScanState) -> Snapshot:
    """What clients need of a state to use the model."""
    return Snapshot(state.model, state.version, state.head)


@dataclass(frozen=True)
class FindCentres(ServerWork[ScanState, Snapshot, LatentSums]):
    """After the last step: the mean latent of each cluster.

    Attributes:
        clusters: Number of clusters k.
        latent: Dimensions d of the latents.
    """

    clusters: int
    latent: int
    exchange = CENTRES

    def broadcast(self, state: ScanState) -> Snapshot:
        """The model."""
        return snapshot(state)

    def check(self, message: Snapshot, update: LatentSums, senders: Sequence[Member]) -> None:
        """Refuse sums of a wrong shape."""
        sums = torch.zeros(self.clusters, self.latent, dtype=torch.float64)
        check_same_shapes(pack(LatentSums(sums, sums[:, 0])), pack(update), "sums of clusters:")

    def aggregate(
        self, state: ScanState, updates: Iterable[LatentSums], randomness: Randomness
    ) -> tuple[ScanState, Figures]:
        """Where a cluster is empty, its centre is the origin."""
        return replace(state, centroids=centres(updates, state.model["head.weight"].dtype)), {}


def centres(updates: Iterable[LatentSums], dtype: torch.dtype) -> Tensor:
    """The mean latent of each cluster, of shape (k, d); the origin where a cluster is empty."""
    total = added_up(updates)
    return (total.sums / total.counts.clamp(min=1).unsqueeze(1)).to(dtype)
