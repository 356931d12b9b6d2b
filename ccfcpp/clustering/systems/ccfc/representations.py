"""Latents and predictions of images, computed by a model in evaluation mode."""

from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from ccfcpp.clustering.systems.fed_scan.messages import ModelVersion
from ccfcpp.core.profiling import section
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Representations:
    """Latents and predictions of a client's images.

    Attributes:
        latents: The encoder's outputs z, of shape (samples, latent).
        predictions: The predictor's outputs p, of the same shape.
    """

    latents: Tensor
    predictions: Tensor


@torch.no_grad()
def represent(network: FlatNetwork, images: Tensor) -> Representations:
    """Return latents and predictions of uint8 images (samples, channels, height, width)."""
    network.train(False)
    size = forward_batch(images[0, 0].numel())
    parts = [network(to_float(batch)) for batch in torch.split(images, size)]
    latents, predictions = (torch.cat(part) for part in zip(*parts, strict=True))
    return Representations(latents, predictions)


class GlobalModel:
    """The global model in evaluation mode, which caches the representations of clients' images."""

    def __init__(self, network: FlatNetwork) -> None:
        self.network = network
        self._version: int | None = None
        self._lock = Lock()  # Clients may train in several threads.

    def load(self, state: ModelVersion) -> None:
        """Load the weights of a version of the global model, unless they are loaded already."""
        with self._lock:
            if state.version != self._version:
                self.network.load(state.model)
                self._version = state.version

    def latents_by(self, model: ModelState, images: Tensor) -> Tensor:
        """Return the latents of uint8 images by the weights ``model``: (images, latent)."""
        self._version = None
        self.network.load(model)
        return represent(self.network, images).latents

    def representations(self, state: ModelVersion, client: Client) -> Representations:
        """Return the representations of a client's images; cached until the version changes.

        A batch holds images of one client only, so that rounding errors do not depend on which
        other clients are in the process. The cache is the client's ``scratch``.
        """
        self.load(state)
        cached = client.scratch.get("representations")
        if cached is None or cached[:2] != (self, state.version):
            with section("global model"):
                cached = self, state.version, represent(self.network, client.images)
            client.scratch["representations"] = cached
        representations: Representations = cached[2]
        return representations
