"""Nearest neighbours among the images of a client: features to compare, and the search."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import to_float

ORIENTATIONS = 8
"""Directions of a histogram, of the whole circle: from dark to light is not from light to dark."""

CELL = 4
"""Pixels from one histogram to the next; each is of a window twice as wide."""

LEVELS = 4
"""Levels of a channel in a histogram of colours."""

_CHANNELS = 3
"""Number of channels of a colour."""

_COLOURS_BESIDE = 0.7
"""Weight of colours beside gradients."""

_BATCH = 1000
"""Images whose gradients are taken at a time."""


def pixels(images: Tensor) -> Tensor:
    """Flatten images: uint8 (samples, channels, height, width) to float (samples, pixels)."""
    return to_float(images).flatten(1)


def centred_pixels(images: Tensor) -> Tensor:
    """Flatten images as ``pixels`` does, and subtract the mean image."""
    found = pixels(images)
    return found - found.mean(dim=0)


def gradients(images: Tensor) -> Tensor:
    """Compute histograms of oriented gradients in overlapping windows, without their mean.

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
    """Compute the histograms of ``gradients``: (samples, 8, rows, columns).

    A pixel's gradient counts for the two nearest directions, more for the nearer one.
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


def colour_histograms(images: Tensor) -> Tensor:
    """Compute colour histograms of each quarter, as square roots and without their mean.

    Args:
        images: uint8 of shape (samples, 3, height, width).

    Returns:
        float of shape (samples, 4 · 64), each of length 1; the 64 bins are four levels of each
        channel.
    """
    parts = [_histograms_of_colours(part) for part in torch.split(images, _BATCH)]
    found = torch.cat(parts).sqrt()
    return F.normalize(found - found.mean(dim=0), dim=1)


def _histograms_of_colours(images: Tensor) -> Tensor:
    levels = images.long() * LEVELS // 256
    kinds = (levels[:, 0] * LEVELS + levels[:, 1]) * LEVELS + levels[:, 2]
    height, width = images.shape[2:]
    of_quarters = []
    for rows in (kinds[:, : height // 2], kinds[:, height // 2 :]):
        for quarter in (rows[..., : width // 2], rows[..., width // 2 :]):
            found = torch.zeros(len(images), LEVELS**3, device=images.device)
            here = quarter.flatten(1)
            ones = torch.ones_like(here, dtype=found.dtype)
            of_quarters.append(found.scatter_add_(1, here, ones))
    return torch.cat(of_quarters, dim=1)


def shapes_and_colours(images: Tensor) -> Tensor:
    """Compute ``gradients``, joined with ``colour_histograms`` if there are three channels."""
    shapes = gradients(images)
    if images.shape[1] != _CHANNELS:
        return shapes
    return torch.cat([shapes, _COLOURS_BESIDE * colour_histograms(images)], dim=1)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": pixels,
    "centred": centred_pixels,
    "gradients": shapes_and_colours,
}
"""Functions that compute the features of images for the first search, by name."""

OF_IMAGES = ("gradients",)
"""First features that vectors do not have."""

_SIMILARITIES = 1 << 24
"""Similarities that are held at a time: 64 MB."""


_EXACT_UP_TO = 100_000
"""Largest number of points of an exact search, whose cost is quadratic."""

_PROBED = 32
"""Number of an index's lists that are searched. docs/performance.md has what they miss."""


def nearest_neighbours(points: Tensor, count: int) -> Tensor:
    """Return the most similar other points of each point, by cosine similarity.

    The search is exact for up to 100,000 points and on a GPU, and otherwise uses a faiss index.

    Args:
        points: Float tensor of shape (samples, dimensions).
        count: Number of neighbours.

    Returns:
        int32 of shape (samples, at most ``count``): indices, fewer if there are fewer other
        points. A single point is its own neighbour.
    """
    if len(points) < 2:
        return torch.zeros(len(points), 1, dtype=torch.int32, device=points.device)
    unit, count = F.normalize(points, dim=1), min(count, len(points) - 1)
    exact = unit.is_cuda or len(unit) <= _EXACT_UP_TO
    return (_exact if exact else _indexed)(unit, count)


def _exact(unit: Tensor, count: int) -> Tensor:
    """Search by all pairwise similarities, a block of points at a time."""
    found = []
    everyone = torch.arange(len(unit), device=unit.device)
    for block in torch.split(everyone, max(1, _SIMILARITIES // len(unit))):
        similarities = unit[block] @ unit.T
        similarities[everyone[: len(block)], block] = -torch.inf
        found.append(similarities.topk(count, dim=1).indices.to(torch.int32))
    return torch.cat(found)


def _indexed(unit: Tensor, count: int) -> Tensor:
    """Search an inverted file: only the lists whose centroids are nearest to a point."""
    # Imported where it is needed, since the import is slow and many runs do without.
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    values = unit.detach().float().cpu().numpy()
    width, lists = values.shape[1], round(4 * math.sqrt(len(values)))
    quantizer = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFFlat(quantizer, width, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid = 1, 50
    index.train(values)
    index.add(values)
    index.nprobe = _PROBED
    found = torch.from_numpy(index.search(values, count + 1)[1])
    own = torch.arange(len(values)).unsqueeze(1)
    found = torch.where(found < 0, own, found)  # Lists with too few points leave gaps.
    others_first = (found == own).to(torch.uint8).argsort(dim=1, stable=True)
    return found.gather(1, others_first)[:, :count].to(unit.device, torch.int32)


def drawn_neighbours(
    neighbours: Tensor, chosen: Tensor, randomness: Randomness, step: int
) -> Tensor:
    """Draw one neighbour of each chosen image at random.

    Args:
        neighbours: Neighbours of each image of the client, int32 of shape (samples, neighbours).
        chosen: int64 indices of shape (chosen,).
        randomness: The client's source.
        step: Number of the step.

    Returns:
        int64 indices of shape (chosen,).
    """
    generator = randomness.generator(f"neighbours {step}")
    places = torch.randint(neighbours.shape[1], (len(chosen),), generator=generator)
    return neighbours[chosen, places.to(neighbours.device)].long()
