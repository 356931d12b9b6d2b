"""What a model that is not trained makes of images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.core.profiling import section
from ccfcpp.data.batches import forward_batch
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.models.stack.stacked import ModelStack
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Representations:
    """What a model makes of a client's images.

    Attributes:
        latents: z of shape (samples, latent).
        predictions: p of the same shape.
    """

    latents: Tensor
    predictions: Tensor


@torch.no_grad()
def represent(model: ModelStack, images: Tensor) -> Representations:
    """Run the one active model of a stack in evaluation mode.

    Args:
        model: The model.
        images: uint8 tensor of shape (samples, channels, height, width).
    """
    model.train(False)
    size = forward_batch(images[0, 0].numel())
    parts = [model(to_float(batch)) for batch in torch.split(images, size)]
    latents, predictions = (torch.cat([r[0, 0] for r in part]) for part in zip(*parts, strict=True))
    return Representations(latents, predictions)


class GlobalModel:
    """The frozen global model, and what it makes of the clients' images.

    Args:
        network: A stack of one, which is not trained.
    """

    def __init__(self, network: ModelStack) -> None:
        self.network = network
        self._version: int | None = None
        self._represented: list[Client] = []

    def use(self, state: ModelState, version: int) -> None:
        """Take over a version of the global model, unless it is there already.

        What earlier versions made of the clients' images is of no use any more.
        """
        if version != self._version:
            self.forget()
            self.network.load(0, state)
            self._version = version

    def of_other(self, state: ModelState, images: Tensor) -> Tensor:
        """What another model makes of images: latents of shape (images, latent)."""
        self.forget()
        self.network.load(0, state)
        return represent(self.network, images).latents

    def forget(self) -> None:
        """Drop the model, and what it made of the clients' images."""
        for client in self._represented:
            client.scratch.pop("representations", None)
        self._represented = []
        self._version = None

    def representations(self, state: ModelState, version: int, client: Client) -> Representations:
        """What the model makes of a client's images: one pass for each of its versions.

        A pass has the images of one client, so that its last bits do not depend on who else is
        there.

        Args:
            state: The global model.
            version: Its number.
            client: The client, whose scratch holds the result for as long as the version lasts.
        """
        self.use(state, version)
        if "representations" not in client.scratch:
            with section("global model"):
                client.scratch["representations"] = represent(self.network, client.images)
            self._represented.append(client)
        representations: Representations = client.scratch["representations"]
        return representations
