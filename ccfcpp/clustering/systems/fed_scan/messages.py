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
    """A model and its version; see ``EncoderState``."""

    @property
    def model(self) -> ModelState: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102


OF_NEIGHBOURS = (
    "an image would tell of its neighbours; set scan.pairs=views and scan.overclustering=1"
)


@dataclass(frozen=True)
class Transitions:
    """Sums of p(x) p(x′)ᵀ over pairs of images of the same client, in float64.

    Attributes:
        neighbours: Over the images of a fold and their neighbours, of shape (folds, m, m). There is
            one fold if k is known.
        holders: Over all pairs of two images of a client, where each client counts as often as it
            has images; of shape (m, m).
    """

    neighbours: Tensor
    holders: Tensor


@dataclass(frozen=True)
class OwnTransitions(Transitions):
    """One client's sums over its pairs of images, with the client's number.

    Attributes:
        client: Its number.
    """

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
