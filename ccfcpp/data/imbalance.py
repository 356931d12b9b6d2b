"""Classes of different sizes: long-tailed parts of data sets."""

import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.data.images import ImageData, random_part, selected


def long_tailed_sizes(largest: int, classes: int, imbalance: float) -> list[int]:
    """Sizes of classes that fall geometrically: round(n · r^(−c/(C−1))) for class c, 1 at least.

    Source: Cui et al., *Class-Balanced Loss Based on Effective Number of Samples*, CVPR 2019.

    Args:
        largest: Size n of class 0, 1 at least.
        classes: Number of classes C.
        imbalance: Ratio r of the largest class to the smallest, 1 at least.

    Returns:
        The size of each class, descending, each from 1 to n.
    """
    last = max(1, classes - 1)
    return [max(1, round(largest * imbalance ** (-c / last))) for c in range(classes)]


def long_tailed(data: ImageData, imbalance: float, generator: torch.Generator) -> ImageData:
    """A part of the images whose classes fall in size geometrically, in the order of the classes.

    The first class keeps as many images as the smallest one has, so that no class runs short. Which
    images are kept is drawn at random; they stay in their order.

    Args:
        data: Labelled images.
        imbalance: Ratio of the largest class to the smallest, 1 at least.
        generator: Where random numbers come from.

    Returns:
        The part, with the same classes and clients.

    Raises:
        UsageError: There are no labels, or a class has no image.
    """
    if data.labels is None:
        raise UsageError(
            f"data.imbalance = {imbalance:g} needs class labels, and {data.name} has none: leave "
            "it out"
        )
    members = [(data.labels == c).nonzero().flatten() for c in range(len(data.classes))]
    smallest = min(map(len, members))
    if smallest == 0:
        empty = data.classes[[len(own) for own in members].index(0)]
        raise UsageError(
            f"data.imbalance = {imbalance:g} needs images of every class, and there are none of "
            f"{empty!r}: leave it out, or give more data.images"
        )
    sizes = long_tailed_sizes(smallest, len(members), imbalance)
    kept = [random_part(own, size, generator) for own, size in zip(members, sizes, strict=True)]
    return selected(data, torch.cat(kept).sort().values)
