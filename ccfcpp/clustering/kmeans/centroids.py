"""Centroids that arrive, or that must be there."""

from torch import Tensor

from ccfcpp.core.errors import FederationError
from ccfcpp.engine.exchange import RefusedUpdateError


def check_centroids(centroids: Tensor, clusters: int, dimensions: int) -> None:
    """Refuse centroids of a wrong shape, or too many or none.

    Raises:
        RefusedUpdateError: They are not (1 to ``clusters``, ``dimensions``).
    """
    found = len(centroids)
    if not 1 <= found <= clusters or centroids.shape != (found, dimensions):
        raise RefusedUpdateError(
            f"centroids are {tuple(centroids.shape)}, expected (1 to {clusters}, {dimensions})"
        )


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
