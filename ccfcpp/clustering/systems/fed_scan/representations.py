"""Latents of images by a network in training, computed between its steps."""

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
    """The network of a process, which computes latents of images between training steps."""

    def __init__(self, make_network: Callable[[], Network], device: torch.device) -> None:
        # Its weights come with a state. Batch statistics are the steps' affair.
        self.network = build(make_network, torch.Generator()).to(device).eval()
        self._loaded: int | None = None

    def load(self, state: ModelVersion) -> Network:
        """Copy the parameters of a state into the network, and return it."""
        if self._loaded != state.version:
            self.network.load_state_dict(state.model)
            self._loaded = state.version
        return self.network

    def latents(self, state: ModelVersion, client: Client) -> Tensor:
        """Return the latents z of a client's images, of shape (samples, d).

        They are computed once for each model, and cached in the client's scratch.
        """
        held = client.scratch.get("latents")
        if held is None or held[:2] != (self, state.version):
            with section("latents of all images"):
                held = (self, state.version, self._compute(state, client.images))
            client.scratch["latents"] = held
        found: Tensor = held[2]
        return found

    @torch.no_grad()
    def _compute(self, state: ModelVersion, images: Tensor) -> Tensor:
        network, size = self.load(state), forward_batch(images[:1].numel() // images.shape[1])
        parts = torch.split(images, size)
        return torch.cat([self.described(network, to_float(part)) for part in parts])

    def described(self, network: Network, images: Tensor) -> Tensor:
        """Return the latents of a batch of images."""
        latents: Tensor = network(images)
        return latents


class LatentSpace(Latents[ClusterNetwork]):
    """Latents and predictions of a network with a head, which assigns images to clusters."""

    def load(self, state: ModelVersion) -> ClusterNetwork:
        """Copy the parameters of a state into the network; its merge may be newer than the step."""
        network = super().load(state)
        if network.merge is not None:
            network.merge.load_state_dict(
                {name: state.model[f"{MERGE}.{name}"] for name in ("groups", "shares")}
            )
        return network

    @torch.no_grad()
    def predictions(self, state: ModelVersion, client: Client) -> Tensor:
        """Return p of a client's images, of shape (samples, m)."""
        latents = self.latents(state, client)
        return self.load(state).predictions(latents)

    def probabilities(self, state: EncoderState, client: Client) -> Tensor:
        """Return the probability of each cluster, of shape (samples, k).

        The probability of a cluster is the sum over its over-clusters.
        """
        assert state.groups is not None
        p = self.predictions(state, client)
        return p @ F.one_hot(state.groups.to(p.device)).to(p)
