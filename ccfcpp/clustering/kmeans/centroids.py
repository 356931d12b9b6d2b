"""Centroids that arrive, or that must be there."""

from torch import Tensor

from ccfcpp.core.errors import FederationError
from ccfcpp.engine.exchange import RefusedUpdateError

_FARTHEST = 1e15
"""Squared distances of many dimensions are far from float32's largest number."""


def check_near(centroids: Tensor) -> None:
    """Refuse centroids whose distances may not be finite: there faiss ends the whole process.

    Raises:
        RefusedUpdateError: A coordinate is out of all proportion.
    """
    if bool(((centroids.abs() > _FARTHEST) & centroids.isfinite()).any()):
        raise RefusedUpdateError(f"centroids lie beyond {_FARTHEST:g}")


def required_centroids(centroids: Tensor | None) -> Tensor:
    """The centroids, where some client has delivered them.

    Raises:
        FederationError: None has.
    """
    if centroids is None:
        raise FederationError(
            "no client has delivered centroids that can be used: see the refused updates above"
        )
    return centroids
