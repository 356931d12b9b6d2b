"""Barlow Twins over clients, with the cross-correlation of all their images.

Source: Zbontar et al., Barlow Twins: Self-Supervised Learning via Redundancy Reduction (ICML 2021).
"""

import torch
from torch import Tensor, nn

from ccfcpp.plugin import (
    AffineViewsConfig,
    ContrastiveClustering,
    ContrastiveConfig,
    IntensityViewsConfig,
    Objective,
    Pool,
    Positive,
    Program,
    System,
    Weight,
    apply_pooled,
)


class TwinsConfig(ContrastiveConfig):
    """The section `twins` of the configuration."""

    latent: Positive = 16
    redundancy: Weight = 0.02
    """Weight of the terms off the diagonal."""


class FedTwins(ContrastiveClustering):
    """A small network, and the loss of Barlow Twins."""

    settings = TwinsConfig
    config: TwinsConfig

    def network(self) -> nn.Module:
        """Build the network."""
        channels, height, width = self.problem.image_shape
        return nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * -(-height // 2) * -(-width // 2), self.config.latent),
            nn.BatchNorm1d(self.config.latent, affine=False),
        )

    def program(self, network: nn.Module, pairs: Tensor) -> Program:
        """Give the loss of a step, and yield what is a sum over all images."""
        # First views of all images, then second views.
        z = yield from apply_pooled(network, pairs.transpose(0, 1).flatten(0, 1))
        d = z.shape[1]
        # Nothing but the common loss depends on this sum, so that no gradient at it has to travel.
        z, sums = yield Pool("correlation", z, products, common=True)
        count, correlation = sums[0].detach(), sums[1:].view(d, d) / sums[0].detach()
        target = torch.eye(d, dtype=sums.dtype, device=sums.device)
        weights = target + self.config.redundancy * (1 - target)
        loss = (weights * (correlation - target).square()).sum()
        # For the report, each client has the share of the loss that it has of the batch.
        return Objective(z.new_zeros(()), loss, {"loss": loss.detach() * len(pairs) / count})


def products(z: Tensor) -> Tensor:
    """Return the number of images, and the sum of z of one view times z of the other."""
    first, second = z.double().chunk(2)
    return torch.cat([first.new_tensor([len(first)]), (first.T @ second).flatten()])


FED_TWINS = System(
    title="Fed-Twins",
    sends="sums of statistics and gradients",
    kinds=("sums",),
    make=FedTwins,
    sections={"twins": TwinsConfig, "affine": AffineViewsConfig, "intensity": IntensityViewsConfig},
    rounds="twins.rounds",
    summary="Barlow Twins in synchronised steps",
)
