"""The encoder of Fed-EMP: it takes images of any size, and encodes each independently."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.models.pooled import apply_rounded

_GROUPS = 8
_AT_FULL_SIZE = 2
"""Number of convolutions before the resolution is first halved."""


def crop_side(height: int, width: int, share: float = 0.5) -> int:
    """Return the side of a crop in pixels: a share of the image's shorter side, rounded down."""
    return max(1, int(min(height, width) * share))


class CropEncoder(nn.Module):
    """Encoder of crops: 3×3 convolutions with GroupNorm, mean pooling, and a perceptron.

    Args:
        config: Widths of the layers.
        image_shape: Channels, height and width.
        precision: dtype to which the convolutions' products are rounded; None for no rounding.

    Raises:
        UsageError: The images are too small for so many layers that halve the resolution.
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
                # Before the norm, which then has a quarter of the numbers to normalise.
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
        self.described_grid, self.described_side = config.described_grid, config.described_side

    def forward(self, images: Tensor) -> Tensor:
        """Return latents, scaled to length 1, of float images or crops: (batch, latent)."""
        # On a CPU, convolutions are fastest in this memory format.
        x = images.contiguous(memory_format=torch.channels_last)
        x = apply_rounded(self.places, x, self.precision)
        return F.normalize(self.perceptron(x.to(images.dtype).mean(dim=(2, 3))), dim=1)


def crop_offsets(size: int, side: int, count: int) -> list[int]:
    """Return the first pixels of ``count`` crops, evenly spaced from one edge to the other."""
    return [round(place * (size - side) / (count - 1)) for place in range(count)]
