"""Messages of Fed-SCAN's exchanges other than its training steps."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.engine.exchange import Exchange, Images
from ccfcpp.engine.update_format import Sum
from ccfcpp.models.state import ModelState


class ModelVersion(Protocol):
    """Interface of a message with a model: its weights, and a version that changes with them."""

    @property
    def model(self) -> ModelState: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102


OF_NEIGHBOURS = (
    "an image would tell of its neighbours; set scan.pairs=views and scan.overclustering=1"
)


@dataclass(frozen=True)
class Transitions:
    """Sums of p(x) p(x′)ᵀ over pairs of images x, x′ of the same client, in float64.

    p(x) holds the probabilities of the m over-clusters for the image x. Element (i, j) of a sum
    estimates in how many pairs x is in over-cluster i, and x′ in j.

    Attributes:
        neighbours: Sums over an image and its neighbours, for each fold (random subset) of the
            images, of shape (folds, m, m). There is one fold if k is known.
        holders: Sum over all pairs of two images of a client, weighted so that each client counts
            as often as it has images; of shape (m, m).
    """

    neighbours: Tensor
    holders: Tensor


@dataclass(frozen=True)
class OwnTransitions(Transitions):
    """``Transitions`` of one client, with the client's number."""

    client: int = -1


TRANSITIONS = Exchange(
    "transitions",
    EncoderState,
    Transitions,
    {"neighbours": Sum(), "holders": Sum()},
    uses_memory=True,
    images=OF_NEIGHBOURS,
    remembers_parts=True,
)
CENTRES = Exchange(
    "centres", EncoderState, ClusterSums, PARTS, images=Images(largest={"counts": 1.0})
)
