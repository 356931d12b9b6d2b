"""What an average of pixels tells of the images in it: an average of one image is that image."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_EXACT = 1e-3
"""An image is known where the average differs from it by less than so much of its length."""
SIZES = ((1, 1), (2, 4), (5, 9), (10, 19), (20, None))
"""Groups of averages, by how many images are in them."""


@dataclass(frozen=True)
class Inversion:
    """Averages of as many images.

    Attributes:
        least: The fewest images in one.
        most: The most; None: any number.
        averages: How many clients have sent.
        exact: How many of them are an image of the client, up to rounding.
        distance: From an average to the client's nearest image, as a share of that image's length;
            the median.
    """

    least: int
    most: int | None
    averages: int
    exact: int
    distance: float


def inverted(sent: Sequence[tuple[Tensor, Tensor]]) -> list[Inversion]:
    """How near averages are to an image.

    Args:
        sent: For each client its averages, of shape (averages, pixels), and its images as points,
            of shape (images, pixels). An image is in the average that it lies nearest to.

    Returns:
        A group for each of ``SIZES`` of which there is an average.
    """
    sizes, distances = [], []
    for averages, points in sent:
        far = torch.cdist(averages.double(), points.double())
        sizes.append(torch.bincount(far.argmin(dim=0), minlength=len(averages)))
        nearest, which = far.min(dim=1)
        distances.append(nearest / points.double()[which].norm(dim=1).clamp(min=1e-12))
    size, distance = torch.cat(sizes), torch.cat(distances)
    found = []
    for least, most in SIZES:
        here = (size >= least) & (size <= (len(size) + int(size.max()) if most is None else most))
        if bool(here.any()):
            near = distance[here]
            exact = int((near < _EXACT).sum())
            found.append(Inversion(least, most, int(here.sum()), exact, float(near.quantile(0.5))))
    return found
