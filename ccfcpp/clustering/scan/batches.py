"""Which neighbour an image is shown with."""

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness


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
