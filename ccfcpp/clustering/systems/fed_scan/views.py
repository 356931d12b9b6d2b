"""Random views of images (affine maps, intensity, colour) and of vectors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.systems.fed_scan.config import VectorViewsConfig
from ccfcpp.core.config import AffineViewsConfig, IntensityViewsConfig
from ccfcpp.data.affine import AFFINE_DRAWS, affine_maps, draw_affine, render_affine
from ccfcpp.data.images import to_float
from ccfcpp.data.intensity import draw_intensity, render_intensity


@dataclass(frozen=True)
class VectorViews:
    """Views of vectors of d elements: noise is added, and some elements are set to 0."""

    config: VectorViewsConfig
    d: int

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw two uniform numbers in [0, 1) for each element of each view: (2 d, count)."""
        return torch.rand(2 * self.d, count, generator=generator)

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return one view of each vector, (batch, d); ``draws`` is the result of ``draw``."""
        vectors = to_float(images)
        by_noise, by_drop = draws.to(vectors).T.chunk(2, dim=1)
        if self.config.noise:
            # Uniform numbers become normal ones through the quantile function, infinite at 0.
            inside = (2 * by_noise - 1).clamp(min=-1 + 1e-6)
            vectors = vectors + self.config.noise * math.sqrt(2) * torch.erfinv(inside)
        return vectors * (by_drop >= self.config.dropped)


@dataclass(frozen=True)
class Views:
    """Views of images: a random affine map, then random changes of intensity and colour."""

    affine: AffineViewsConfig
    intensity: IntensityViewsConfig

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw uniform numbers in [0, 1) for ``count`` views: (numbers per view, count)."""
        return torch.cat([draw_affine(count, generator), draw_intensity(count, generator)])

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return one view of each image.

        Args:
            images: uint8 of shape (batch, channels, height, width).
            draws: Result of ``draw`` for ``batch`` views.

        Returns:
            float tensor of the images' shape.
        """
        draws = draws.to(images.device)
        maps = affine_maps(draws[:AFFINE_DRAWS], self.affine)
        views = render_affine(to_float(images), maps)
        return render_intensity(views, draws[AFFINE_DRAWS:], self.intensity)


AnyViews = Views | VectorViews
