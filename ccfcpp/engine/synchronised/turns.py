"""Which images of a client take part in a step.

A client's images come in one random order after the other. In step s it is the turn of those from
place ⌊s q + u⌋ to ⌊(s + 1) q + u⌋, where q is the client's share of the batch, B times its share of
all images, and u in [0, 1) is the client's own: without it, all small clients would show an image
in the same steps. So all clients together show about B images in a step, whatever the partition,
and each client shows each of its images about equally often.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ccfcpp.core.randomness import SETUP, Randomness

Turn = Callable[[int, float, int, Randomness], Tensor]
"""From a client's number of images, its share of the batch, a step and its source to indices."""


def turn(samples: int, share: float, step: int, randomness: Randomness) -> Tensor:
    """The images of a client whose turn it is.

    Args:
        samples: How many images the client has.
        share: q, the images that it shows in a step on average.
        step: s.
        randomness: The client's source.

    Returns:
        int64 indices; none where no image's turn falls into this step.
    """
    source = randomness.at_round(SETUP)
    offset = float(torch.rand((), generator=source.generator("turn"), dtype=torch.float64))
    first, last = (math.floor(s * share + offset) for s in (step, step + 1))
    epochs = range(first // samples, max(first, last - 1) // samples + 1)
    orders = [_order(samples, epoch, source) for epoch in epochs]
    start = epochs.start * samples
    return torch.cat(orders)[first - start : last - start]


def _order(samples: int, epoch: int, source: Randomness) -> Tensor:
    """The same whenever it is asked for: an order lasts for many steps and for several rounds."""
    return torch.randperm(samples, generator=source.generator(f"order {epoch}"))
