"""The autoencoder of FedDCN, and what it makes of samples and latents."""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn

from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import ModelState
from ccfcpp.plugin import PrecisionConfig, Problem


def _layers(widths: list[int]) -> nn.Sequential:
    """Return linear layers from each width to the next; the hidden ones are normalised."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def part_of(model: ModelState, name: str) -> ModelState:
    """Return the weights of an autoencoder's ``encoder`` or ``decoder``."""
    return {
        entry.removeprefix(f"{name}."): tensor
        for entry, tensor in model.items()
        if entry.startswith(f"{name}.")
    }


class Autoencoder(nn.Module):
    """Autoencoder as in the public code: an encoder f, and a decoder g with the reverse widths."""

    def __init__(self, config: FedDCNConfig, shape: tuple[int, ...]) -> None:
        super().__init__()
        widths = [math.prod(shape), *config.widths, config.latent]
        self.encoder = _layers(widths)
        self.decoder = _layers(widths[::-1])
        if len(shape) > 1:  # Pixels are in [0, 1], and vectors anywhere.
            self.decoder.append(nn.Sigmoid())

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents f(x), (batch, latent), and reconstructions g(f(x)), (batch, pixels)."""
        latents: Tensor = self.encoder(points)
        return latents, self.decoder(latents)


class Space:
    """The space of latents: maps samples to latents, and latents to samples, by given weights."""

    def __init__(self, problem: Problem) -> None:
        self.config, self.shape = problem.config.section(FedDCNConfig), problem.image_shape
        self.device = problem.device
        self.precision = problem.config.section(PrecisionConfig).precision
        self._encoder = self._network(lambda: self.make_model().encoder)

    def make_model(self) -> Autoencoder:
        """Build the autoencoder."""
        return Autoencoder(self.config, self.shape)

    def _network(self, make: Callable[[], nn.Module]) -> FlatNetwork:
        return FlatNetwork(make, self.device, trained=False, precision=self.precision)

    @torch.no_grad()
    def encode(self, model: ModelState, samples: Tensor) -> Tensor:
        """Return the latents of uint8 images or vectors, of shape (samples, latent)."""
        self._encoder.load(part_of(model, "encoder"))
        chunks = torch.split(samples, forward_batch(math.prod(self.shape)))
        return torch.cat([self._encoder(to_float(chunk).flatten(1))[0] for chunk in chunks])

    @torch.no_grad()
    def decode(self, decoder: ModelState, latents: Tensor) -> Tensor:
        """Map latents (samples, latent) to uint8 images or vectors, by a decoder's weights."""
        network = self._network(lambda: self.make_model().decoder)
        network.load(decoder)
        (points,) = network(latents.to(network.weights))
        points = points.nan_to_num().view(-1, *self.shape)
        return points if len(self.shape) == 1 else (points * 255).round().to(torch.uint8)
