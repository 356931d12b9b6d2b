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


class LatentSpace:
    """The network of a process: it gives latents of images, and between that it is trained.

    Args:
        make_network: Builds the network.
        device: Where it runs.
    """

    def __init__(self, make_network: Callable[[], ScanNetwork], device: torch.device) -> None:
        # Its weights come with a state.
        self.network = build(make_network, torch.Generator()).to(device)
        self._loaded: int | None = None

    def load(self, state: Snapshot | ScanState) -> ScanNetwork:
        """The network with the parameters of a state, which are copied into its own."""
        if self._loaded != state.steps:
            self.network.load_state_dict(state.model)
            self._loaded = state.steps
        return self.network

    def latents(self, state: Snapshot | ScanState, holder: Client) -> Tensor:
        """Normalised latents z of a holder's images, of shape (samples, d).

        They are computed once for each model, and kept in the holder's scratch.
        """
        held = holder.scratch.get("latents")
        if held is None or held[:2] != (self, state.steps):
            with section("latents of all images"):
                held = (self, state.steps, self._compute(state, holder.images))
            holder.scratch["latents"] = held
        found: Tensor = held[2]
        return found

    @torch.no_grad()
    def _compute(self, state: Snapshot | ScanState, images: Tensor) -> Tensor:
        network, size = self.load(state), forward_batch(images[0, 0].numel())
        parts = [network(to_float(part)) for part in torch.split(images, size)]
        return normalised(torch.cat(parts), state.running_mean, state.running_variance)

    @torch.no_grad()
    def clusters(self, state: Snapshot | ScanState, holder: Client) -> Tensor:
        """The head's cluster of each image, int64 of shape (samples,)."""
        latents = self.latents(state, holder)
        found: Tensor = self.load(state).head(latents).argmax(dim=1)
        return found
