"""Features by which images are alike before anything is learnt."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.data.images import to_float

ORIENTATIONS = 8
"""Directions of a histogram, of the whole circle: from dark to light is not from light to dark."""

CELL = 4
"""Pixels from one histogram to the next; each is of a window twice as wide."""

_BATCH = 1000
"""Images whose gradients are taken at a time."""


def pixels(images: Tensor) -> Tensor:
    """All pixels: uint8 (samples, channels, height, width) to float (samples, pixels)."""
    return to_float(images).flatten(1)


def centred_pixels(images: Tensor) -> Tensor:
    """The same without the mean image."""
    found = pixels(images)
    return found - found.mean(dim=0)


def gradients(images: Tensor) -> Tensor:
    """Histograms of oriented gradients in overlapping windows, without their mean.

    Source: Dalal and Triggs, *Histograms of Oriented Gradients for Human Detection* (CVPR 2005):
    here of the square root of the grey image, with windows of 8 by 8 pixels every 4 pixels, each
    normalised by its own length, where weak windows are held down.

    Args:
        images: uint8 of shape (samples, channels, height, width).

    Returns:
        float of shape (samples, 8 · windows), each of length 1.
    """
    found = torch.cat([histograms(to_float(part)) for part in torch.split(images, _BATCH)])
    found = found.flatten(1)
    return F.normalize(found - found.mean(dim=0), dim=1)


def histograms(images: Tensor) -> Tensor:
    """The histograms of ``gradients``: (samples, 8, rows, columns).

    A pixel's gradient counts for the two nearest directions, by how near they are.
    """
    grey = images.mean(dim=1, keepdim=True).sqrt()
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    across = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    down = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    directions = torch.arange(ORIENTATIONS, device=images.device).view(1, -1, 1, 1)
    turned = torch.atan2(down, across) * (ORIENTATIONS / (2 * math.pi)) - directions
    half = ORIENTATIONS / 2
    distance = ((turned + half) % ORIENTATIONS - half).abs()
    votes = (1 - distance).clamp(min=0) * (across.square() + down.square()).sqrt()
    found: Tensor = F.avg_pool2d(votes, 2 * CELL, stride=CELL, padding=CELL // 2)
    length: Tensor = torch.linalg.vector_norm(found, dim=1, keepdim=True)
    return found / (length + 0.05 * length.amax(dim=(2, 3), keepdim=True) + 1e-6)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": pixels,
    "centred": centred_pixels,
    "gradients": gradients,
}
"""By the names that the configuration has for them."""
