"""Random views of images: of place and shape, then of intensity and colour."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.scan.config import AffineViewsConfig, IntensityViewsConfig
from ccfcpp.data.affine import AFFINE_DRAWS, affine_maps, draw_affine, render_affine
from ccfcpp.data.images import to_float
from ccfcpp.data.intensity import draw_intensity, render_intensity


@dataclass(frozen=True)
class Views:
    """How views are drawn and made."""

    affine: AffineViewsConfig
    intensity: IntensityViewsConfig

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Uniform numbers in [0, 1) that views are made of, of shape (draws, count)."""
        return torch.cat([draw_affine(count, generator), draw_intensity(count, generator)])

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """One view of each image.

        Args:
            images: uint8 of shape (batch, channels, height, width).
            draws: What ``draw`` gave, of shape (draws, batch).

        Returns:
            float tensor of the images' shape.
        """
        draws = draws.to(images.device)
        maps = affine_maps(draws[:AFFINE_DRAWS], self.affine)
        views = render_affine(to_float(images), maps)
        return render_intensity(views, draws[AFFINE_DRAWS:], self.intensity)
