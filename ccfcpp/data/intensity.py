"""Random changes of images in intensity and colour, and erased rectangles."""

import torch
from torch import Tensor

from ccfcpp.core.config import IntensityViewsConfig

_DARKEST = 1e-4
"""Smallest intensity before the gamma change; a lower one is raised to it."""


def draw_intensity(count: int, generator: torch.Generator) -> Tensor:
    """Draw uniform numbers in [0, 1) for ``render_intensity``, of shape (12, count), on the CPU."""
    return torch.rand(12, count, generator=generator)


def render_intensity(images: Tensor, draws: Tensor, ranges: IntensityViewsConfig) -> Tensor:
    """Change each image's gamma, colour, contrast and brightness, then erase a rectangle.

    Each change is drawn uniformly from its range. Values may leave [0, 1].

    Args:
        images: Float tensor of shape (batch, channels, height, width), values in [0, 1].
        draws: Result of ``draw_intensity``, of shape (12, batch), or (12, 1) for all images.
        ranges: The largest change of each property; 0 turns it off.
    """
    draws = draws.to(images)[:, :, None, None, None]
    around = draws * 2 - 1
    if ranges.gamma:
        images = images.clamp(min=_DARKEST) ** (around[0] * ranges.gamma).exp()
    if images.shape[1] == 3:
        images = _change_colours(images, draws, ranges)
    if ranges.contrast:
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        images = mean + (images - mean) * (around[1] * ranges.contrast).exp()
    if ranges.brightness:
        images = images * (around[2] * ranges.brightness).exp()
    if ranges.erase:
        images = images * ~_rectangle_mask(draws[8:], ranges.erase, images.shape[-2:])
    return images


def _change_colours(images: Tensor, draws: Tensor, ranges: IntensityViewsConfig) -> Tensor:
    """Change the saturation, tint the images, or make them grey."""
    around = draws * 2 - 1
    if ranges.saturation:
        grey = images.mean(dim=1, keepdim=True)
        images = grey + (images - grey) * (around[3] * ranges.saturation).exp()
    if ranges.tint:
        images = images * (around[4:7, :, 0].transpose(0, 1) * ranges.tint).exp()
    if ranges.grey_probability:
        grey = images.mean(dim=1, keepdim=True)
        images = torch.where(draws[7] < ranges.grey_probability, grey, images)
    return images


def _rectangle_mask(draws: Tensor, largest: float, size: torch.Size) -> Tensor:
    """Return whether each pixel lies in the rectangle to erase, bool (batch, 1, height, width).

    ``draws`` in [0, 1), of shape (4, batch, 1, 1, 1), are the vertical and horizontal position of
    the middle, the height and the width; the sides are multiplied by ``largest``.
    """
    inside: list[Tensor] = []
    for middle, side, pixels, shape in zip(
        draws[:2], draws[2:] * largest, size, [(-1, 1), (1, -1)], strict=True
    ):
        places = (torch.arange(pixels, device=draws.device) + 0.5).view(shape) / pixels
        inside.append((places - middle).abs().lt(side / 2))
    return inside[0] & inside[1]
