"""The nearest images of the same client, by the cosine of their points."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.randomness import Randomness

_SIMILARITIES = 1 << 24
"""Similarities that are held at a time: 64 MB."""


def nearest_neighbours(points: Tensor, count: int) -> Tensor:
    """The most similar other points of each point: exact, a block of points at a time.

    Args:
        points: Float tensor of shape (samples, dimensions).
        count: How many neighbours are wanted.

    Returns:
        int32 of shape (samples, at most ``count``): indices, fewer where there are fewer other
        points. A point that is alone is its own neighbour.
    """
    samples = len(points)
    if samples < 2:
        return torch.zeros(samples, 1, dtype=torch.int32, device=points.device)
    unit = F.normalize(points, dim=1)
    found = []
    everyone = torch.arange(samples, device=points.device)
    for block in torch.split(everyone, max(1, _SIMILARITIES // samples)):
        similarities = unit[block] @ unit.T
        similarities[everyone[: len(block)], block] = -torch.inf
        found.append(similarities.topk(min(count, samples - 1), dim=1).indices.to(torch.int32))
    return torch.cat(found)


def drawn_neighbours(
    neighbours: Tensor, chosen: Tensor, randomness: Randomness, step: int
) -> Tensor:
    """One neighbour of each chosen image, at random.

    Args:
        neighbours: Of each image of the client, int32 of shape (samples, neighbours).
        chosen: int64 indices of shape (chosen,).
        randomness: The client's source.
        step: s.

    Returns:
        int64 indices of shape (chosen,).
    """
    generator = randomness.generator(f"neighbours {step}")
    places = torch.randint(neighbours.shape[1], (len(chosen),), generator=generator)
    return neighbours[chosen, places.to(neighbours.device)].long()
