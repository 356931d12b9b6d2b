"""Random affine views of images, each image with its own map."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.config import AffineViewsConfig

AFFINE_DRAWS = 7
"""Number of uniform random numbers that determine one affine map."""


def draw_affine(count: int, generator: torch.Generator) -> Tensor:
    """Draw uniform numbers in [0, 1) for ``affine_maps``, of shape (7, count), on the CPU."""
    return torch.rand(AFFINE_DRAWS, count, generator=generator)


def affine_maps(draws: Tensor, ranges: AffineViewsConfig) -> Tensor:
    """Compute affine maps that rotate, scale, stretch, shear, mirror and shift each image.

    Args:
        draws: Result of ``draw_affine``, of shape (7, count).
        ranges: The largest rotation, scaling, shear and shift; each is drawn uniformly.

    Returns:
        Floats of shape (count, 2, 3): for each image the affine matrix that maps a point of the
        view to its position in the image, both in coordinates from -1 to 1.
    """
    angle, size, aspect, shear, across, down = draws[:6] * 2 - 1
    angle = angle * math.radians(ranges.rotation)
    size, aspect = (size * ranges.scale).exp(), (aspect * ranges.scale / 2).exp()
    shear = shear * ranges.shear
    mirror = torch.where(draws[6] < ranges.flip_probability, -1.0, 1.0)
    cos, sin = angle.cos(), angle.sin()
    width, height = size * aspect, size / aspect
    top = [cos * width * mirror, cos * shear - sin * height, across * ranges.shift]
    bottom = [sin * width * mirror, sin * shear + cos * height, down * ranges.shift]
    return torch.stack([torch.stack(top, dim=1), torch.stack(bottom, dim=1)], dim=1)


def render_affine(images: Tensor, transforms: Tensor) -> Tensor:
    """Render one view of each image by bilinear sampling; pixels outside an image are 0.

    Args:
        images: Float tensor of shape (batch, channels, height, width).
        transforms: Result of ``affine_maps``, of shape (batch, 2, 3).
    """
    if len(images) == 0:
        return images
    grid = F.affine_grid(transforms.to(images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
