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


class Grouped(Model, Protocol):
    """A model that assigns images to clusters; see ``Snapshot``."""

    @property
    def groups(self) -> Tensor | None: ...  # noqa: D102


class Merging(Grouped, Protocol):
    """A state with a network whose over-clusters are merged; see ``ScanState``."""

    @property
    def evidence(self) -> Tensor | None: ...  # noqa: D102
    @property
    def descent(self) -> DescentState | None: ...  # noqa: D102


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
        groups: The cluster of each over-cluster, int64 of shape (m,); None before the first merge,
            where there is something to merge.
        centroids: The mean latent of each cluster, of shape (k, d); None before the last round.
        evidence: Where k is to be found: how much speaks for each number that it may be, float64 of
            shape (numbers,), at the last merge.
    """

    model: ModelState
    version: int
    descent: DescentState
    groups: Tensor | None
    centroids: Tensor | None = None
    evidence: Tensor | None = None


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

    @property
    def clusters(self) -> int:
        """Their number k."""
        return int(self.groups.max()) + 1


@dataclass(frozen=True)
class Trained:
    """A model whose over-clusters may not be merged yet."""

    model: ModelState
    version: int


@dataclass(frozen=True)
class Transitions:
    """Sums of p(x) p(x′)ᵀ over pairs of images of the same client, in float64.

    Attributes:
        neighbours: Over the images of a fold and their neighbours, of shape (folds, m, m). There is
            one fold where k is known.
        holders: Over all pairs of two images of a client, where each client counts as often as it
            has images; of shape (m, m).
    """

    neighbours: Tensor
    holders: Tensor


@dataclass(frozen=True)
class OwnTransitions(Transitions):
    """The transitions of a client that is known.

    Attributes:
        client: Its number.
    """

    client: int = -1


TRANSITIONS = Exchange(
    "transitions",
    Trained,
    Transitions,
    {"neighbours": Sum(), "holders": Sum()},
    uses_memory=True,
    images=OF_NEIGHBOURS,
    remembers_parts=True,
)
CENTRES = Exchange("centres", Snapshot, ClusterSums, PARTS, images=Images(largest={"counts": 1.0}))
