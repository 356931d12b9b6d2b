"""What a model of Fed-SCAN makes of images while nothing is trained."""

from collections.abc import Callable

import torch
from torch import Tensor

from ccfcpp.clustering.scan.messages import ScanState, Snapshot
from ccfcpp.clustering.scan.network import ScanNetwork
from ccfcpp.clustering.scan.statistics import normalised
from ccfcpp.core.profiling import section
from ccfcpp.data.batches import forward_batch
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.models.initialisation import build
from ccfcpp.models.state import ModelState


class LatentSpace:
    """The latents of images by the model of a step.

    Args:
        make_network: Builds the network.
        device: Where it runs.
    """

    def __init__(self, make_network: Callable[[], ScanNetwork], device: torch.device) -> None:
        # Its weights come with a state.
        self.network = build(make_network, torch.Generator()).to(device)
        self._steps: int | None = None
        self._seen: list[Client] = []

    def load(self, model: ModelState) -> ScanNetwork:
        """The network with given parameters, which are copied into its own."""
        self.forget()
        self.network.load_state_dict(model)
        return self.network

    def forget(self) -> None:
        """Drop what the model made of clients' images: it is another one now."""
        for client in self._seen:
            client.scratch.pop("latents", None)
        self._seen, self._steps = [], None

    def latents(self, state: Snapshot | ScanState, holder: Client) -> Tensor:
        """Normalised latents z of a holder's images, of shape (samples, d).

        They are computed once for each model, and kept in the holder's scratch meanwhile.
        """
        if self._steps != state.steps:
            self.load(state.model)
            self._steps = state.steps
        if "latents" not in holder.scratch:
            with section("latents of all images"):
                holder.scratch["latents"] = self._compute(state, holder.images)
            self._seen.append(holder)
        found: Tensor = holder.scratch["latents"]
        return found

    @torch.no_grad()
    def _compute(self, state: Snapshot | ScanState, images: Tensor) -> Tensor:
        size = forward_batch(images[0, 0].numel())
        parts = [self.network(to_float(part)) for part in torch.split(images, size)]
        return normalised(torch.cat(parts), state.running_mean, state.running_variance)

    @torch.no_grad()
    def clusters(self, state: Snapshot | ScanState, holder: Client) -> Tensor:
        """The head's cluster of each image, int64 of shape (samples,)."""
        found: Tensor = self.network.head(self.latents(state, holder)).argmax(dim=1)
        return found
