"""Latents of all images of a client, computed between training steps."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.fed_scan.messages import ModelVersion
from ccfcpp.clustering.systems.fed_scan.network import MERGE, ClusterNetwork
from ccfcpp.core.profiling import section
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.engine.client import Client
from ccfcpp.models.state import build

Network = TypeVar("Network", bound=nn.Module)


class Latents(Generic[Network]):
    """A network in evaluation mode, which computes and caches the latents of clients' images."""

    def __init__(self, make_network: Callable[[], Network], device: torch.device) -> None:
        # Weights come with a state. In evaluation mode, batch statistics do not change.
        self.network = build(make_network, torch.Generator()).to(device).eval()
        self._loaded: int | None = None

    def load(self, state: ModelVersion) -> Network:
        """Copy the weights of a state into the network, unless it has them; return the network."""
        if self._loaded != state.version:
            self.network.load_state_dict(state.model)
            self._loaded = state.version
        return self.network

    def latents(self, state: ModelVersion, client: Client) -> Tensor:
        """Return the latents z of a client's images, of shape (samples, d).

        They are computed once for each version of the model, and cached in ``client.scratch``.
        """
        cached = client.scratch.get("latents")
        if cached is None or cached[:2] != (self, state.version):
            with section("latents of all images"):
                cached = (self, state.version, self._compute(state, client.images))
            client.scratch["latents"] = cached
        latents: Tensor = cached[2]
        return latents

    @torch.no_grad()
    def _compute(self, state: ModelVersion, images: Tensor) -> Tensor:
        network, size = self.load(state), forward_batch(images[:1].numel() // images.shape[1])
        parts = torch.split(images, size)
        return torch.cat([self.encode(network, to_float(part)) for part in parts])

    def encode(self, network: Network, images: Tensor) -> Tensor:
        """Return the latents of a batch of float images, of shape (batch, d)."""
        latents: Tensor = network(images)
        return latents


class LatentSpace(Latents[ClusterNetwork]):
    """``Latents`` of a network with a head, which also computes cluster probabilities."""

    def load(self, state: ModelVersion) -> ClusterNetwork:
        """Copy the weights of a state, and its merge, into the network; return the network."""
        network = super().load(state)
        if network.merge is not None:  # A merge does not change the version.
            network.merge.load_state_dict(
                {name: state.model[f"{MERGE}.{name}"] for name in ("groups", "shares")}
            )
        return network

    @torch.no_grad()
    def predictions(self, state: ModelVersion, client: Client) -> Tensor:
        """Return the over-clusters' probabilities for a client's images, of shape (samples, m)."""
        latents = self.latents(state, client)
        return self.load(state).predictions(latents)

    def probabilities(self, state: EncoderState, client: Client) -> Tensor:
        """Return the clusters' probabilities, summed over their over-clusters: (samples, k)."""
        assert state.groups is not None
        p = self.predictions(state, client)
        return p @ F.one_hot(state.groups.to(p.device)).to(p)
