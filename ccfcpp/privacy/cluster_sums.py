"""Sums over the members of each cluster, as a client sends them."""

from torch import Tensor
from torch.nn import functional as F

from ccfcpp.privacy.dp_mechanism import Bounds
from ccfcpp.privacy.smallest import large_enough


def cluster_sums(
    points: Tensor, labels: Tensor, clusters: int, bounds: Bounds | None, least: int
) -> tuple[Tensor, Tensor]:
    """Sum and number of each cluster's points.

    Args:
        points: Of shape (samples, d).
        labels: int64 of shape (samples,).
        clusters: Number of clusters k.
        bounds: How large an image's part may be; None: as it is.
        least: The fewest images over which a client sends a sum.

    Returns:
        float64 of shape (k, d) and of shape (k,).
    """
    members = F.one_hot(labels, clusters).double()
    summed = points.double()
    if bounds is not None:
        norms = summed.norm(dim=1, keepdim=True).clamp(min=1e-300)
        summed = summed * (bounds.of("sums") / norms).clamp(max=1)
    members = members * large_enough(members.sum(dim=0), least)
    return members.T @ summed, cluster_counts(members, bounds)


def cluster_counts(members: Tensor, bounds: Bounds | None) -> Tensor:
    """Number of each cluster's members, float64 of shape (k,), from ones of shape (samples, k)."""
    one = 1.0 if bounds is None else min(1.0, bounds.of("counts"))
    return one * members.double().sum(dim=0)
