"""Search for nearest neighbours among a client's images, and the features it compares."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import to_float

ORIENTATIONS = 8
"""Number of bins of a histogram of directions, over the whole circle."""

CELL = 4
"""Pixels between the windows of neighbouring histograms; a window is twice as wide."""

LEVELS = 4
"""Number of bins of each channel in a histogram of colours."""

_CHANNELS = 3
"""Number of channels of colour images."""

_COLOURS_BESIDE = 0.7
"""Weight of the histograms of colours relative to those of gradients."""

_BATCH = 1000
"""Number of images whose histograms are computed at a time."""


def pixels(images: Tensor) -> Tensor:
    """Flatten images: uint8 (samples, channels, height, width) to float (samples, pixels)."""
    return to_float(images).flatten(1)


def centred_pixels(images: Tensor) -> Tensor:
    """Flatten images as ``pixels`` does, and subtract the mean image."""
    flat = pixels(images)
    return flat - flat.mean(dim=0)


def oriented_gradients(images: Tensor) -> Tensor:
    """Compute histograms of oriented gradients in overlapping windows, minus their mean.

    Source: Dalal and Triggs, *Histograms of Oriented Gradients for Human Detection* (CVPR 2005).
    Gradients are those of the square root of the grey image, windows have 8 by 8 pixels and lie 4
    pixels apart, and each histogram is normalised, except that weak ones stay weak.

    Args:
        images: uint8 of shape (samples, channels, height, width).

    Returns:
        float of shape (samples, 8 · windows); each row has length 1.
    """
    parts = [histograms(to_float(part)) for part in torch.split(images, _BATCH)]
    flat = torch.cat(parts).flatten(1)
    return F.normalize(flat - flat.mean(dim=0), dim=1)


def histograms(images: Tensor) -> Tensor:
    """Compute a histogram of 8 gradient directions for each window of float images.

    A pixel's gradient counts for the two nearest directions, more for the nearer one. The result
    has the shape (samples, 8, rows of windows, columns of windows).
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
    sums: Tensor = F.avg_pool2d(votes, 2 * CELL, stride=CELL, padding=CELL // 2)
    length: Tensor = torch.linalg.vector_norm(sums, dim=1, keepdim=True)
    return sums / (length + 0.05 * length.amax(dim=(2, 3), keepdim=True) + 1e-6)


def colour_histograms(images: Tensor) -> Tensor:
    """Compute the square roots of colour histograms of each image quarter, minus their mean.

    Args:
        images: uint8 of shape (samples, 3, height, width).

    Returns:
        float of shape (samples, 4 · 64), for 4 quarters and 4 × 4 × 4 colours; each row has
        length 1.
    """
    parts = [_quarter_histograms(part) for part in torch.split(images, _BATCH)]
    roots = torch.cat(parts).sqrt()
    return F.normalize(roots - roots.mean(dim=0), dim=1)


def _quarter_histograms(images: Tensor) -> Tensor:
    """Count the pixels of each colour in each quarter of uint8 images: (samples, 4 · 64)."""
    levels = images.long() * LEVELS // 256
    colours = (levels[:, 0] * LEVELS + levels[:, 1]) * LEVELS + levels[:, 2]
    height, width = images.shape[2:]
    of_quarters = []
    for rows in (colours[:, : height // 2], colours[:, height // 2 :]):
        for quarter in (rows[..., : width // 2], rows[..., width // 2 :]):
            counts = torch.zeros(len(images), LEVELS**3, device=images.device)
            flat = quarter.flatten(1)
            ones = torch.ones_like(flat, dtype=counts.dtype)
            of_quarters.append(counts.scatter_add_(1, flat, ones))
    return torch.cat(of_quarters, dim=1)


def shapes_and_colours(images: Tensor) -> Tensor:
    """Compute ``oriented_gradients``; for colour images, append ``colour_histograms``."""
    shapes = oriented_gradients(images)
    if images.shape[1] != _CHANNELS:
        return shapes
    return torch.cat([shapes, _COLOURS_BESIDE * colour_histograms(images)], dim=1)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": pixels,
    "centred": centred_pixels,
    "gradients": shapes_and_colours,
}
"""Functions that map uint8 images to the features that the first search compares, by name."""

OF_IMAGES = ("gradients",)
"""Names of features that only images have, not vectors."""

_SIMILARITIES = 1 << 24
"""Number of similarities that are in memory at a time: 64 MB."""


_EXACT_UP_TO = 100_000
"""Largest number of points of an exact search on a CPU, whose cost is quadratic."""

_PROBED = 32
"""Number of the index's lists that are searched; docs/performance.md reports the recall."""


def nearest_neighbours(points: Tensor, count: int) -> Tensor:
    """Return the most similar other points of each point, by cosine similarity.

    The search is exact for up to 100,000 points and on a GPU, and otherwise uses a faiss index.

    Args:
        points: Float tensor of shape (samples, dimensions).
        count: Number of neighbours of each point.

    Returns:
        Indices, most similar first: int32 of shape (samples, ``count``), or fewer columns if there
        are fewer other points. A single point is its own neighbour.
    """
    if len(points) < 2:
        return torch.zeros(len(points), 1, dtype=torch.int32, device=points.device)
    unit, count = F.normalize(points, dim=1), min(count, len(points) - 1)
    exact = unit.is_cuda or len(unit) <= _EXACT_UP_TO
    return (_exact if exact else _indexed)(unit, count)


def _exact(unit: Tensor, count: int) -> Tensor:
    """Search neighbours by all pairwise similarities, for a block of points at a time."""
    neighbours = []
    everyone = torch.arange(len(unit), device=unit.device)
    for block in torch.split(everyone, max(1, _SIMILARITIES // len(unit))):
        similarities = unit[block] @ unit.T
        similarities[everyone[: len(block)], block] = -torch.inf
        neighbours.append(similarities.topk(count, dim=1).indices.to(torch.int32))
    return torch.cat(neighbours)


def _indexed(unit: Tensor, count: int) -> Tensor:
    """Search neighbours approximately, by a faiss index: only among points of the nearest lists."""
    # Imported here, since the import is slow and many runs do not need it.
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
    nearest = torch.from_numpy(index.search(values, count + 1)[1])
    own = torch.arange(len(values)).unsqueeze(1)
    nearest = torch.where(nearest < 0, own, nearest)  # Lists with too few points leave gaps.
    others_first = (nearest == own).to(torch.uint8).argsort(dim=1, stable=True)
    return nearest.gather(1, others_first)[:, :count].to(unit.device, torch.int32)


def draw_neighbours(
    neighbours: Tensor, chosen: Tensor, randomness: Randomness, step: int
) -> Tensor:
    """Draw one neighbour of each chosen image at random.

    Args:
        neighbours: Neighbours of each image of the client, int32 of shape (samples, neighbours).
        chosen: Indices of the chosen images, int64 of shape (chosen,).
        randomness: The client's source of random numbers.
        step: Number of the step.

    Returns:
        Indices of the neighbours, int64 of shape (chosen,).
    """
    generator = randomness.generator(f"neighbours {step}")
    places = torch.randint(neighbours.shape[1], (len(chosen),), generator=generator)
    return neighbours[chosen, places.to(neighbours.device)].long()
