"""What a model makes of test images."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import ModelState
from supervised.augmentation import Normalisation
from supervised.config import ClassifyConfig
from supervised.networks import Classifier

_FORWARD_BATCH, _USUAL_PIXELS = 500, 32 * 32


@dataclass(frozen=True)
class TestSet:
    """Images on which models are tested.

    Attributes:
        name: What reports call it, such as a domain.
        client: The client whose model is tested on it, where clients have models of their own.
        index: int64 indices of its images in the data set.
        images: uint8 tensor of shape (samples, channels, height, width).
        labels: int64 tensor of shape (samples,).
    """

    name: str
    client: int | None
    index: Tensor
    images: Tensor
    labels: Tensor


class Evaluator:
    """A network that is not trained."""

    def __init__(
        self, make_model: Callable[[], Classifier], config: ClassifyConfig, device: torch.device
    ) -> None:
        precision = config.compute.precision
        self._network = FlatNetwork(make_model, device, trained=False, precision=precision)
        self._normalise = Normalisation(config.data, device)

    @torch.no_grad()
    def __call__(self, model: ModelState, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run a model on images as they are.

        Returns:
            Representations of shape (samples, features), and predicted classes, int64 of shape
            (samples,).
        """
        self._network.load(model)
        size = forward_batch(images[0, 0].numel(), _FORWARD_BATCH, _USUAL_PIXELS)
        parts = [
            self._network(self._normalise(to_float(batch))) for batch in torch.split(images, size)
        ]
        representations, logits = (torch.cat(some) for some in zip(*parts, strict=True))
        return representations, logits.argmax(dim=1)
