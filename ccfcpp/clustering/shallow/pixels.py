"""Images as points: what the systems without a network cluster."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.server import most_similar, nearest
from ccfcpp.core.config import PixelsConfig
from ccfcpp.data.images import to_float

_IMAGES_AT_A_TIME = 4096


@dataclass(frozen=True)
class CentroidState:
    """What the server of a system without a network knows.

    Attributes:
        centroids: Global centroids of shape (at most k, pixels); None before the first ones.
        moved: How far they have moved in the last round; None before there were two.
    """

    centroids: Tensor | None = None
    moved: float | None = None


@dataclass(frozen=True)
class PixelRule:
    """How images become points, and points labels.

    Attributes:
        config: The choices.
        image_shape: Channels, height and width of an image.
    """

    config: PixelsConfig
    image_shape: tuple[int, ...]

    @property
    def dimensions(self) -> int:
        """Of a point."""
        return prod(self.image_shape)

    @property
    def by_angle(self) -> bool:
        """Whether a centroid's direction alone counts."""
        return self.config.assignment == "cosine"

    def points(self, images: Tensor) -> Tensor:
        """Pixels in [0, 1], or those of each image as a vector of length 1.

        Args:
            images: uint8 of shape (samples, channels, height, width).

        Returns:
            float32 of shape (samples, pixels).
        """
        pixels = to_float(images).flatten(1)
        return F.normalize(pixels, dim=1) if self.config.normalise else pixels

    def assign(self, images: Tensor, centroids: Tensor) -> Tensor:
        """The centroid of each image, int64 of shape (samples,)."""
        rule = most_similar if self.by_angle else nearest
        parts = torch.split(images, _IMAGES_AT_A_TIME)
        return torch.cat([rule(self.points(part), centroids) for part in parts])
