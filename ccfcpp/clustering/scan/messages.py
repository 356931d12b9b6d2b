"""What the server of Fed-SCAN knows, and what clients need of it outside of steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.scan.objective import head_figure
from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.synchronised.messages import Descent
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class ScanState:
    """What the server knows.

    Attributes:
        model: The network's parameters and the running statistics of its latents.
        version: How many steps it has come through.
        descent: The optimizer's state, and sums of the step that is under way.
        centroids: The mean latent of each cluster, of shape (k, d); None before the last round.
    """

    model: ModelState
    version: int
    descent: Descent
    centroids: Tensor | None = None

    @property
    def head(self) -> int:
        """The head with the lowest loss in the step before."""
        losses = self.descent.figures
        heads = [losses[name] for name in map(head_figure, range(len(losses))) if name in losses]
        return int(torch.stack(heads).argmin()) if heads else 0


@dataclass(frozen=True)
class Snapshot:
    """A model that clients can use.

    Attributes:
        model: The network's parameters and running statistics.
        version: How many steps it has come through.
        head: Which head assigns.
    """

    model: ModelState
    version: int
    head: int


@dataclass(frozen=True)
class LatentSums:
    """Sums of the latents of each cluster's images.

    Attributes:
        sums: float64 of shape (k, d).
        counts: float64 of shape (k,).
    """

    sums: Tensor
    counts: Tensor


CENTRES = Exchange("centres", Snapshot, LatentSums, summed=True)
