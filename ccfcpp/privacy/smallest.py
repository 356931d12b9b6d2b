"""Sums over few images stay where they are: an average of one image is that image."""

from torch import Tensor


def large_enough(counts: Tensor, least: int) -> Tensor:
    """Which sums or averages a client sends.

    Args:
        counts: How many images are in each.
        least: How many there must be.

    Returns:
        bool of the shape of ``counts``.
    """
    return counts >= least
