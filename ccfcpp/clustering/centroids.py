"""From representations to local and global centroids."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans import Clustering, kmeans, most_similar, nearest
from ccfcpp.config import CentroidConfig
from ccfcpp.engine.algorithm import RefusedUpdateError
from ccfcpp.randomness import Randomness


@dataclass(frozen=True)
class CentroidUpdate:
    """A client's local centroids.

    Attributes:
        centroids: float32 of shape (at most k, latent).
        sizes: float64 of shape (at most k,): the samples of each.
    """

    centroids: Tensor
    sizes: Tensor


class CentroidRule:
    """How representations become centroids and labels.

    Args:
        config: The choices.
        clusters: Number of clusters k, at the clients and at the server.
    """

    def __init__(self, config: CentroidConfig, clusters: int) -> None:
        self.config = config
        self.clusters = clusters

    def points(self, latents: Tensor) -> Tensor:
        """The representations that are clustered: normalised where assignment is by cosine."""
        return F.normalize(latents, dim=1) if self.config.assignment == "cosine" else latents

    def assign(self, latents: Tensor, centroids: Tensor) -> Tensor:
        """The centroid of each representation, int64 of shape (samples,)."""
        rule = most_similar if self.config.assignment == "cosine" else nearest
        return rule(self.points(latents), centroids)

    def local_centroids(self, latents: Tensor, randomness: Randomness) -> CentroidUpdate:
        """k-means at a client; one with fewer than k samples has as many centroids as samples.

        Raises:
            RefusedUpdateError: The representations hold NaN or Inf: the model has diverged.
        """
        if not bool(torch.isfinite(latents).all()):
            raise RefusedUpdateError("its representations hold NaN or Inf")
        found = self._kmeans(self.points(latents), None, randomness)
        return CentroidUpdate(found.centroids, found.sizes)

    def global_centroids(self, updates: Sequence[CentroidUpdate], randomness: Randomness) -> Tensor:
        """k-means at the server over all uploaded centroids."""
        points = torch.cat([update.centroids for update in updates])
        sizes = torch.cat([update.sizes for update in updates])
        weights = sizes if self.config.server_weights == "sizes" else None
        return self._kmeans(points, weights, randomness).centroids

    def _kmeans(self, points: Tensor, weights: Tensor | None, randomness: Randomness) -> Clustering:
        return kmeans(
            points,
            self.clusters,
            seed=randomness.integer("k-means"),
            restarts=self.config.restarts,
            iterations=self.config.iterations,
            weights=weights,
        )

    def check_centroids(self, update: CentroidUpdate, dimensions: int) -> None:
        """Raise ``RefusedUpdateError`` where local centroids cannot be used."""
        found = len(update.centroids)
        if not 1 <= found <= self.clusters or update.centroids.shape != (found, dimensions):
            raise RefusedUpdateError(
                f"centroids are {tuple(update.centroids.shape)}, expected (1 to {self.clusters}, "
                f"{dimensions})"
            )
        if update.sizes.shape != (found,) or not bool((update.sizes > 0).all()):
            raise RefusedUpdateError("cluster sizes must be positive, one for each centroid")
