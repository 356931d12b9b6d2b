"""Random views of images by intensity and colour: another light, and a part that is hidden."""

from typing import Protocol

import torch
from torch import Tensor

_DARKEST = 1e-4
"""Lower intensities count as this one, so that a power of them is no zero."""


class IntensityRanges(Protocol):
    """How far views may be from their image; see ``IntensityViewsConfig``."""

    @property
    def gamma(self) -> float: ...  # noqa: D102 - named as in the configuration
    @property
    def brightness(self) -> float: ...  # noqa: D102
    @property
    def contrast(self) -> float: ...  # noqa: D102
    @property
    def saturation(self) -> float: ...  # noqa: D102
    @property
    def tint(self) -> float: ...  # noqa: D102
    @property
    def grey_probability(self) -> float: ...  # noqa: D102
    @property
    def erase(self) -> float: ...  # noqa: D102


def draw_intensity(count: int, generator: torch.Generator) -> Tensor:
    """Draw what views are made of: uniform numbers in [0, 1), of shape (12, count).

    Args:
        count: How many views.
        generator: A CPU generator.
    """
    return torch.rand(12, count, generator=generator)


def render_intensity(images: Tensor, draws: Tensor, ranges: IntensityRanges) -> Tensor:
    """One view of each image, in the order gamma, colour, contrast, brightness, erased rectangle.

    Each amount is uniform in its range. Without any range a view is its image. Values may leave
    [0, 1].

    Args:
        images: Float tensor of shape (batch, channels, height, width), values in [0, 1].
        draws: What ``draw_intensity`` gave, of shape (12, batch).
        ranges: How far they go.

    Returns:
        Tensor of the images' shape.
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


def _coloured(images: Tensor, draws: Tensor, ranges: IntensityRanges) -> Tensor:
    """More or less colour, a tint, or none."""
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
    """Pixels whose middle lies in a rectangle: bool of shape (batch, 1, height, width).

    Args:
        draws: Of shape (4, batch, 1, 1, 1): the middle, down and across, and the two sides.
        largest: The longest side, as a share of the image's.
        size: Height and width of the images.
    """
    inside: list[Tensor] = []
    for middle, side, pixels, shape in zip(
        draws[:2], draws[2:] * largest, size, [(-1, 1), (1, -1)], strict=True
    ):
        places = (torch.arange(pixels, device=draws.device) + 0.5).view(shape) / pixels
        inside.append((places - middle).abs().lt(side / 2))
    return inside[0] & inside[1]
