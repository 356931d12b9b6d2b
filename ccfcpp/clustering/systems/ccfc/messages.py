"""Messages between the server and the clients of CCFC and CCFC++."""

from dataclasses import dataclass

from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import PARTS, CentroidUpdate, ClusterSums
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.engine.exchange import Exchange, Images
from ccfcpp.engine.update_format import Count, Mean, Part, Votes
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class TrainingUpdate:
    """A client's update after local training.

    Attributes:
        model: The local model.
        samples: Number of the client's samples, its weight in the average.
        loss: Mean training loss; None if the client could not train.
        local: Local centroids; None if this exchange does not ask for them.
    """

    model: ModelState
    samples: int
    loss: float | None = None
    local: CentroidUpdate | None = None


@dataclass(frozen=True)
class ClusterSizes:
    """Number of images of each pseudo-label: float64 of shape (k,)."""

    counts: Tensor


_ONE_BY_ONE = Images(largest={"counts": 1.0})
_MODEL: dict[str, Part] = {
    "model": Mean("samples"),
    "samples": Count(),
    "loss": Mean("samples", report=True, optional=True),
}
_CENTROIDS: dict[str, Part] = {"centroids": Votes(weights="sizes"), "sizes": Count()}
_LOCAL: dict[str, Part] = {f"local/{name}": part for name, part in _CENTROIDS.items()}


def local_training_exchange(
    name: str, with_centroids: bool
) -> Exchange[EncoderState, TrainingUpdate]:
    """Return the exchange of local training: clients send models, and centroids if asked to."""
    parts = _MODEL | _LOCAL if with_centroids else _MODEL
    return Exchange(name, EncoderState, TrainingUpdate, parts, uses_memory=True)


CENTROIDS = Exchange("centroids", EncoderState, CentroidUpdate, _CENTROIDS)
LABELS = Exchange(
    "pseudo-labels",
    EncoderState,
    ClusterSizes,
    {"counts": Count()},
    uses_memory=True,
    images=_ONE_BY_ONE,
)


def refinement_exchange(unit_length: bool) -> Exchange[EncoderState, ClusterSums]:
    """Return the exchange of a Lloyd step; with ``unit_length``, an image adds at most norm 1."""
    largest = {"counts": 1.0} | ({"sums": 1.0} if unit_length else {})
    return Exchange("refinement", EncoderState, ClusterSums, PARTS, images=Images(largest=largest))
