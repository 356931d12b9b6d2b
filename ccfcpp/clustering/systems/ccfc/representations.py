"""Latents and predictions of images by a model in evaluation mode."""

from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from ccfcpp.core.profiling import section
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Representations:
    """Latents and predictions of a client's images.

    Attributes:
        latents: z of shape (samples, latent).
        predictions: p of the same shape.
    """

    latents: Tensor
    predictions: Tensor


@torch.no_grad()
def represent(network: FlatNetwork, images: Tensor) -> Representations:
    """Run a network in evaluation mode, on uint8 images."""
    network.train(False)
    size = forward_batch(images[0, 0].numel())
    parts = [network(to_float(batch)) for batch in torch.split(images, size)]
    latents, predictions = (torch.cat(part) for part in zip(*parts, strict=True))
    return Representations(latents, predictions)


class GlobalModel:
    """The frozen global model, with the representations of the clients' images."""

    def __init__(self, network: FlatNetwork) -> None:
        self.network = network
        self._version: int | None = None
        self._lock = Lock()  # Clients may train in several threads.

    def use(self, state: ModelState, version: int) -> None:
        """Load a version of the global model, unless it is loaded already."""
        with self._lock:
            if version != self._version:
                self.network.load(state)
                self._version = version

    def of_other(self, state: ModelState, images: Tensor) -> Tensor:
        """Compute the latents of images with another model, of shape (images, latent)."""
        self._version = None
        self.network.load(state)
        return represent(self.network, images).latents

    def representations(self, state: ModelState, version: int, client: Client) -> Representations:
        """Return the representations of a client's images, computed once per version of the model.

        A pass has the images of one client, so that its last bits do not depend on who else is
        there. The client's scratch holds the result.
        """
        self.use(state, version)
        held = client.scratch.get("representations")
        if held is None or held[:2] != (self, version):
            with section("global model"):
                held = self, version, represent(self.network, client.images)
            client.scratch["representations"] = held
        found: Representations = held[2]
        return found
