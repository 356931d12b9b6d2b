"""Long-tailed subsets of data sets, whose classes differ in size."""

import torch

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.data.images import S, sample_indices


def long_tailed_sizes(largest: int, classes: int, imbalance: float) -> list[int]:
    """Return class sizes that fall geometrically: max(1, round(n · r^(−c/(C−1)))) for class c.

    n is the ``largest`` size, C the number of ``classes``, and r ≥ 1 the ``imbalance``, the ratio
    of the largest class to the smallest. Source: Cui et al., *Class-Balanced Loss Based on
    Effective Number of Samples*, CVPR 2019.
    """
    last = max(1, classes - 1)
    return [max(1, round(largest * imbalance ** (-c / last))) for c in range(classes)]


def long_tailed(data: S, imbalance: float, generator: torch.Generator) -> S:
    """Return a random subset of the images, with the class sizes of ``long_tailed_sizes``.

    The first and largest class gets as many images as the smallest class of ``data`` has.
    The images keep their order.

    Raises:
        UsageError: There are no labels, or a class has no image.
    """
    if data.labels is None:
        raise UsageError(
            KeyValue("data.imbalance", imbalance),
            f" needs class labels, and {data.name} has none: leave it out",
        )
    members = [(data.labels == c).nonzero().flatten() for c in range(len(data.classes))]
    smallest = min(map(len, members))
    if smallest == 0:
        empty = data.classes[[len(own) for own in members].index(0)]
        raise UsageError(
            KeyValue("data.imbalance", imbalance),
            f" needs images of every class, and there are none of "
            f"{empty!r}: leave it out, or give more data.images",
        )
    sizes = long_tailed_sizes(smallest, len(members), imbalance)
    kept = [sample_indices(own, size, generator) for own, size in zip(members, sizes, strict=True)]
    return data.selected(torch.cat(kept).sort().values)
