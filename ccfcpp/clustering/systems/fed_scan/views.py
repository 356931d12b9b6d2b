"""Random views of images (place, shape, intensity, colour) and of vectors."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ccfcpp.clustering.systems.fed_scan.config import VectorViewsConfig
from ccfcpp.core.config import AffineViewsConfig, IntensityViewsConfig
from ccfcpp.data.affine import AFFINE_DRAWS, affine_maps, draw_affine, render_affine
from ccfcpp.data.images import to_float
from ccfcpp.data.intensity import draw_intensity, render_intensity


class AnyViews(Protocol):
    """Interface of random views, of images or of vectors."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the uniform numbers in [0, 1) that determine views, of shape (draws, count)."""

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return one view of each sample, a float tensor of the samples' shape."""


@dataclass(frozen=True)
class VectorViews:
    """Views of vectors of length d: with noise added, and some numbers set to 0."""

    config: VectorViewsConfig
    d: int

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw two uniform numbers for each number of a vector, of shape (2 d, count)."""
        return torch.rand(2 * self.d, count, generator=generator)

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """Add noise to vectors, then set some numbers to 0."""
        vectors = to_float(images)
        by_noise, by_drop = draws.to(vectors).T.chunk(2, dim=1)
        if self.config.noise:
            # The quantiles of a normal distribution; a draw of 0 would be infinite.
            inside = (2 * by_noise - 1).clamp(min=-1 + 1e-6)
            vectors = vectors + self.config.noise * math.sqrt(2) * torch.erfinv(inside)
        return vectors * (by_drop >= self.config.dropped)


@dataclass(frozen=True)
class Views:
    """Views of images: an affine map, then changes of intensity and colour."""

    affine: AffineViewsConfig
    intensity: IntensityViewsConfig

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the uniform numbers in [0, 1) that determine views, of shape (draws, count)."""
        return torch.cat([draw_affine(count, generator), draw_intensity(count, generator)])

    def render(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return one view of each image.

        Args:
            images: uint8 of shape (batch, channels, height, width).
            draws: Result of ``draw``, of shape (draws, batch).

        Returns:
            float tensor of the images' shape.
        """
        draws = draws.to(images.device)
        maps = affine_maps(draws[:AFFINE_DRAWS], self.affine)
        views = render_affine(to_float(images), maps)
        return render_intensity(views, draws[AFFINE_DRAWS:], self.intensity)
