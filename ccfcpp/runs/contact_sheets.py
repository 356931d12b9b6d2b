"""Contact sheets: grids of small images in one picture."""

import io
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ccfcpp.data.vectors import Pictures

_GAP = 2
_LEAST_WIDTH = 56
"""Pixels between images, and least pixels of an image's longer side: smaller ones are enlarged."""


def contact_sheet(images: Tensor, columns: int) -> Tensor:
    """Arrange images in a grid with ``columns`` columns, on a white background.

    Args:
        images: uint8 of shape (images, 1 or 3 channels, height, width), at least one.
        columns: Number of images in a row.

    Returns:
        uint8 of shape (height, width, 3).
    """
    count, _, height, width = images.shape
    scale = max(1, -(-_LEAST_WIDTH // max(height, width)))
    enlarged = images.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
    down, across = scale * height + _GAP, scale * width + _GAP
    rows = -(-count // columns)
    paper = torch.full((rows * down + _GAP, columns * across + _GAP, 3), 255, dtype=torch.uint8)
    for number, image in enumerate(enlarged.cpu()):
        top, left = number // columns * down + _GAP, number % columns * across + _GAP
        place = paper[top : top + scale * height, left : left + scale * width]
        place.copy_(image.permute(1, 2, 0))  # a grey image fills all three colours
    return paper


def shrink(images: Tensor, largest: int) -> Tensor:
    """Scale images down so that their longer side has at most ``largest`` pixels.

    Images are uint8 of shape (images, channels, height, width), and so is the result.
    """
    scale = largest / max(images.shape[-2:])
    if scale >= 1:
        return images
    size = [max(1, round(scale * side)) for side in images.shape[-2:]]
    return F.interpolate(images, size=size, mode="bilinear", antialias=True)


def thumbnails(
    index: Sequence[int],
    values: Tensor,
    names: Sequence[str],
    pictures: Pictures | None,
    largest: int,
) -> dict[int, Tensor]:
    """Return thumbnails of some samples, by index; of vectors only those made of photos have one.

    Args:
        index: Indices of the samples.
        values: Images, uint8 of shape (samples, channels, height, width), or vectors.
        names: Names of all samples.
        pictures: For vectors of photos, a function that returns photos by their names.
        largest: Largest height and width of a thumbnail, in pixels.

    Returns:
        uint8 of shape (channels, height, width) each.
    """
    if values.ndim == 4:
        return dict(zip(index, shrink(values[list(index)].cpu(), largest), strict=True))
    photos = pictures([names[number] for number in index]) if pictures else {}
    return {
        number: shrink(photos[names[number]][None], largest)[0]
        for number in index
        if names[number] in photos
    }


def as_png(picture: Tensor) -> bytes:
    """Encode an RGB picture, uint8 of shape (height, width, 3), as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(picture.numpy()).save(buffer, format="png")
    return buffer.getvalue()
