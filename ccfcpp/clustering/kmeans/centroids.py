"""Checks of centroids that clients send or that must exist."""

from torch import Tensor

from ccfcpp.core.errors import FederationError
from ccfcpp.engine.exchange import RefusedUpdateError

_FARTHEST = 1e15
"""Largest coordinate: squared distances in many dimensions stay far below float32's maximum."""


def check_near(centroids: Tensor) -> None:
    """Refuse centroids whose distances may not be finite, since faiss would end the process.

    Raises:
        RefusedUpdateError: A coordinate is too large.
    """
    if bool(((centroids.abs() > _FARTHEST) & centroids.isfinite()).any()):
        raise RefusedUpdateError(f"centroids lie beyond {_FARTHEST:g}")


def required_centroids(centroids: Tensor | None) -> Tensor:
    """Return the centroids, which must exist.

    Raises:
        FederationError: No client has delivered any.
    """
    if centroids is None:
        raise FederationError(
            "no client has delivered centroids that can be used: see the refused updates above"
        )
    return centroids
