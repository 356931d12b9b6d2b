"""Assignment of many points, a block of points at a time."""

from collections.abc import Iterable

import torch
from torch import Tensor

_NUMBERS_AT_A_TIME = 1 << 22
"""32 MB in double precision; larger blocks are no faster."""


def blocks(points: Tensor, width: int | None = None) -> Iterable[Tensor]:
    """Split rows into blocks, so that what is made of a block has a few million numbers.

    Args:
        points: Of shape (samples, …).
        width: Numbers that are made of a row; as many as it has where it is None.
    """
    each = width or max(1, points[:1].numel())
    return torch.split(points, max(1, _NUMBERS_AT_A_TIME // each))


def offsets(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Move points and centroids so that the centroids' mean is 0.

    Then ‖c‖² − 2 xᵀc tells small differences of distances far from the origin, too.

    Returns:
        Both, in the points' dtype.
    """
    mean = centroids.mean(dim=0)
    return points - mean.to(points), (centroids - mean).to(points)


def assigned(points: Tensor, centroids: Tensor) -> Tensor:
    """The nearest centroid of each point of a block, int64 of shape (samples,).

    Distances are by one matrix product, in the points' precision.
    """
    x, c = offsets(points, centroids)
    return torch.addmm(c.square().sum(dim=1), x, c.T, alpha=-2).argmin(dim=1)


def squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """‖x − c‖² of a block of points, of shape (samples, k); what is rounding alone becomes 0."""
    x, c = offsets(points, centroids)
    sizes = x.square().sum(dim=1, keepdim=True) + c.square().sum(dim=1)
    found = torch.addmm(sizes, x, c.T, alpha=-2)
    return found.masked_fill_(found <= 4 * torch.finfo(x.dtype).eps * sizes, 0)
