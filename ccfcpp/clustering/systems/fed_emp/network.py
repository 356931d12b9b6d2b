"""The encoder of Fed-EMP. Nothing in it couples images, and it takes images of any size."""

from collections.abc import Callable, Sequence
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.models.pooled import apply_rounded

_GROUPS = 8
_AT_FULL_SIZE = 2
"""Convolutions before the first halving."""


def crop_side(height: int, width: int) -> int:
    """Return the side of a crop in pixels: half of the image's shorter side."""
    return max(1, min(height, width) // 2)


class CropEncoder(nn.Module):
    """Convolutions 3×3 with GroupNorm, the mean over places, and a small perceptron.

    Args:
        config: The section.
        image_shape: Channels, height and width.
        precision: What convolutions round to; None for no rounding.

    Raises:
        UsageError: The images are too small for so many halvings.
    """

    def __init__(
        self, config: CropsConfig, image_shape: Sequence[int], precision: torch.dtype | None = None
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        halvings = max(0, len(config.widths) - _AT_FULL_SIZE)
        if crop_side(height, width) >> halvings < 1:
            raise UsageError(
                f"crops.widths = {list(config.widths)} halves crops of images of {height} by "
                f"{width} pixels below one pixel: give fewer widths"
            )
        layers: list[nn.Module] = []
        for place, out in enumerate(config.widths, start=1):
            layers.append(nn.Conv2d(channels, out, kernel_size=3, padding=1))
            if _AT_FULL_SIZE <= place < len(config.widths):
                # Before the norm, which has a quarter of the numbers to go over then.
                layers.append(nn.MaxPool2d(2))
            layers += [nn.GroupNorm(_GROUPS, out), nn.LeakyReLU(0.1)]
            channels = out
        self.places = nn.Sequential(*layers)
        perceptron: list[nn.Module] = []
        for _ in range(2):
            perceptron += [nn.Linear(channels, config.hidden), nn.LayerNorm(config.hidden)]
            perceptron += [nn.LeakyReLU(0.1)]
            channels = config.hidden
        self.perceptron = nn.Sequential(*perceptron, nn.Linear(channels, config.latent))
        self.precision = precision
        self.grid = config.grid

    def forward(self, images: Tensor) -> Tensor:
        """Return latents of length 1 of images or crops, of shape (batch, latent)."""
        # A processor's convolutions are fastest with the channels of a place side by side.
        x = images.contiguous(memory_format=torch.channels_last)
        x = apply_rounded(self.places, x, self.precision)
        return F.normalize(self.perceptron(x.to(images.dtype).mean(dim=(2, 3))), dim=1)

    def described(self, images: Tensor, change: Callable[[int, Tensor], Tensor]) -> Tensor:
        """Return the direction of each image's mean latent over a grid of crops: (batch, latent).

        Args:
            images: Tensor of shape (batch, channels, height, width).
            change: Maps a crop's place in the grid and the crops of all images there to crops.
        """
        height, width = images.shape[2:]
        side = crop_side(height, width)
        corners = product(_starts(height, side, self.grid), _starts(width, side, self.grid))
        total = sum(
            self(change(place, images[:, :, top : top + side, left : left + side]))
            for place, (top, left) in enumerate(corners)
        )
        assert isinstance(total, Tensor)
        return F.normalize(total, dim=1)


def _starts(size: int, side: int, count: int) -> list[int]:
    """Return the first pixel of each crop, spaced evenly from one edge to the other."""
    return [round(place * (size - side) / (count - 1)) for place in range(count)]
