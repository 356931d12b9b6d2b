"""What the server of Fed-SCAN knows, and what clients need of it outside of steps."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums
from ccfcpp.engine.exchange import Exchange, Images
from ccfcpp.engine.parts import Sum
from ccfcpp.engine.synchronised.contract import DescentState
from ccfcpp.models.state import ModelState


class Model(Protocol):
    """A model and its version; see ``Snapshot``."""

    @property
    def model(self) -> ModelState: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102


class Merging(Model, Protocol):
    """A state with a network whose over-clusters are merged; see ``ScanState``."""

    @property
    def groups(self) -> Tensor | None: ...  # noqa: D102


OF_NEIGHBOURS = (
    "an image would tell of its neighbours; set scan.pairs=views and scan.overclustering=1"
)


@dataclass(frozen=True)
class ScanState:
    """What the server knows.

    Attributes:
        model: The network's parameters and the running statistics of its latents.
        version: How many steps it has come through.
        descent: The optimizer's state, and sums of the step that is under way.
        groups: The cluster of each over-cluster, int64 of shape (m,), or (1, m) in older runs; None
            before the first merge, where there is something to merge.
        centroids: The mean latent of each cluster, of shape (k, d); None before the last round.
    """

    model: ModelState
    version: int
    descent: DescentState
    groups: Tensor | None
    centroids: Tensor | None = None


@dataclass(frozen=True)
class Snapshot:
    """A model that clients can use.

    Attributes:
        model: The network's parameters and running statistics.
        version: How many steps it has come through.
        groups: The cluster of each over-cluster, int64 of shape (m,).
        centroids: The mean latent of each cluster, of shape (k, d), in the end.
    """

    model: ModelState
    version: int
    groups: Tensor
    centroids: Tensor | None = None


@dataclass(frozen=True)
class Trained:
    """A model whose over-clusters may not be merged yet."""

    model: ModelState
    version: int


@dataclass(frozen=True)
class Transitions:
    """Weighted sums of p(x) p(x′)ᵀ over pairs of neighbours and of a client's images.

    They are float64 of shape (m, m).
    """

    sums: Tensor


TRANSITIONS = Exchange(
    "transitions", Trained, Transitions, {"sums": Sum()}, uses_memory=True, images=OF_NEIGHBOURS
)
CENTRES = Exchange("centres", Snapshot, ClusterSums, PARTS, images=Images(largest={"counts": 1.0}))
