"""Random changes of images in intensity and colour, and erased rectangles."""

import torch
from torch import Tensor

from ccfcpp.core.config import IntensityViewsConfig

_DARKEST = 1e-4
"""Lower intensities are raised to this one, so that no power of them is 0."""


def draw_intensity(count: int, generator: torch.Generator) -> Tensor:
    """Draw uniform numbers in [0, 1) for ``render_intensity``, of shape (12, count), on the CPU."""
    return torch.rand(12, count, generator=generator)


def render_intensity(images: Tensor, draws: Tensor, ranges: IntensityViewsConfig) -> Tensor:
    """Change each image's gamma, colour, contrast and brightness, then erase a rectangle.

    Each change is uniform in its range. Values may leave [0, 1].

    Args:
        images: Float tensor of shape (batch, channels, height, width), values in [0, 1].
        draws: Result of ``draw_intensity``, of shape (12, batch), or (12, 1) for all images.
        ranges: The largest change of each kind; 0 turns it off.
    """
    draws = draws.to(images)[:, :, None, None, None]
    around = draws * 2 - 1
    if ranges.gamma:
        images = images.clamp(min=_DARKEST) ** (around[0] * ranges.gamma).exp()
    if images.shape[1] == 3:
        images = _coloured(images, draws, ranges)
    if ranges.contrast:
        mean = images.mean(dim=(1, 2, 3), keepdim=True)
        images = mean + (images - mean) * (around[1] * ranges.contrast).exp()
    if ranges.brightness:
        images = images * (around[2] * ranges.brightness).exp()
    if ranges.erase:
        images = images * ~_rectangles(draws[8:], ranges.erase, images.shape[-2:])
    return images


def _coloured(images: Tensor, draws: Tensor, ranges: IntensityViewsConfig) -> Tensor:
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


def _rectangles(draws: Tensor, largest: float, size: torch.Size) -> Tensor:
    """Return whether each pixel lies in the rectangle to erase, bool (batch, 1, height, width).

    ``draws`` has the shape (4, batch, 1, 1, 1): the middle, down and across, and the two sides.
    """
    inside: list[Tensor] = []
    for middle, side, pixels, shape in zip(
        draws[:2], draws[2:] * largest, size, [(-1, 1), (1, -1)], strict=True
    ):
        places = (torch.arange(pixels, device=draws.device) + 0.5).view(shape) / pixels
        inside.append((places - middle).abs().lt(side / 2))
    return inside[0] & inside[1]
