"""What travels between the server and the clients of CCFC and CCFC++."""

from dataclasses import dataclass, replace

from torch import Tensor

from ccfcpp.clustering.ccfc.centroids import CentroidUpdate
from ccfcpp.engine.exchange import Exchange
from ccfcpp.engine.synchronised.messages import Descent
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class CCFCState:
    """What the server knows, and what goes down but for the descent.

    Attributes:
        model: The global model.
        version: How often the global model has changed.
        centroids: Global centroids of shape (at most k, latent); None before the first ones.
        descent: In synchronised steps: the optimizer's state, which stays at the server.
    """

    model: ModelState
    version: int = 0
    centroids: Tensor | None = None
    descent: Descent | None = None

    @property
    def public(self) -> "CCFCState":
        """What goes down."""
        return replace(self, descent=None)


@dataclass(frozen=True)
class TrainingUpdate:
    """What comes up after local training.

    Attributes:
        model: The local model.
        samples: Number of the client's samples, its weight in the average.
        loss: Mean training loss; None where the client could not train.
        local: Local centroids, where this exchange asks for them.
    """

    model: ModelState
    samples: int
    loss: float | None = None
    local: CentroidUpdate | None = None


@dataclass(frozen=True)
class LloydUpdate:
    """Sums that a server may add up without seeing a single client's.

    Attributes:
        sums: float64 of shape (k, latent): sum of the representations assigned to each centroid.
        counts: float64 of shape (k,): how many they are.
    """

    sums: Tensor
    counts: Tensor


@dataclass(frozen=True)
class ClusterSizes:
    """How many images have which pseudo-label.

    Attributes:
        counts: float64 of shape (k,).
    """

    counts: Tensor


PRETRAINING = Exchange("pre-training", CCFCState, TrainingUpdate, uses_memory=True, averaged=True)
CLUSTER_CONTRAST = Exchange(
    "cluster contrast", CCFCState, TrainingUpdate, uses_memory=True, averaged=True
)
CENTROIDS = Exchange("centroids", CCFCState, CentroidUpdate)
LABELS = Exchange("pseudo-labels", CCFCState, ClusterSizes, uses_memory=True, summed=True)
REFINEMENT = Exchange("refinement", CCFCState, LloydUpdate, summed=True)
