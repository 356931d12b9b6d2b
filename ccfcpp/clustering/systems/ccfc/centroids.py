"""k-means on representations, at the clients and at the server."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.centroids import CentroidUpdate
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.kmeans.server import (
    Clustering,
    kmeans,
    kmeans_of_each,
    most_similar,
    nearest,
)
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import RefusedUpdateError


@dataclass(frozen=True)
class CentroidRule:
    """k-means on representations (latents): its settings, and its steps at clients and server."""

    config: CentroidConfig
    clusters: int

    @property
    def unit_length(self) -> bool:
        """Whether representations are scaled to length 1 before clustering."""
        return self.config.assignment == "cosine"

    def points(self, latents: Tensor) -> Tensor:
        """Return the points to cluster: the latents, scaled to length 1 for cosine similarity."""
        return F.normalize(latents, dim=1) if self.unit_length else latents

    def assign(self, latents: Tensor, centroids: Tensor) -> Tensor:
        """Return the index of the centroid to which each latent is assigned, int64 (samples,)."""
        rule = most_similar if self.unit_length else nearest
        return rule(self.points(latents), centroids)

    def local_centroids(
        self, latents: Sequence[Tensor], sources: Sequence[Randomness], least: int = 0
    ) -> list[CentroidUpdate | RefusedUpdateError]:
        """Run k-means on each client's representations.

        Args:
            latents: Representations of each client's images, of shape (samples, latent).
            sources: Each client's source of random numbers.
            least: Smallest number of images of a cluster whose centroid is sent.

        Returns:
            For each client its centroids, k or fewer; or a refusal if its representations hold
            NaN or Inf, since its model has diverged, or if all its clusters are too small.
        """
        points = [self.points(own) for own in latents]
        finite = [i for i, own in enumerate(points) if bool(torch.isfinite(own).all())]
        with section("k-means: clients"):
            clusterings = kmeans_of_each(
                [points[i] for i in finite],
                self.clusters,
                seeds=[sources[i].integer("k-means") for i in finite],
                restarts=self.config.restarts,
                iterations=self.config.iterations,
            )
        refused = RefusedUpdateError("its representations hold NaN or Inf")
        updates: list[CentroidUpdate | RefusedUpdateError] = [refused] * len(points)
        for i, clustering in zip(finite, clusterings, strict=True):
            updates[i] = _drop_small_clusters(clustering, least)
        return updates

    def global_centroids(self, updates: Sequence[CentroidUpdate], randomness: Randomness) -> Tensor:
        """Run k-means over all clients' centroids; return global ones, float32 (at most k, latent).

        Local centroids are weighted by cluster size if the configuration says so.
        """
        return self._kmeans(updates, randomness.integer("k-means"), self.config.restarts)

    def starts(self, updates: Sequence[CentroidUpdate], randomness: Randomness) -> Tensor:
        """Run k-means over all clients' centroids once from each of several seeds.

        Returns:
            The centroids of each, float32 of shape (at most ``config.starts``, at most k, latent):
            those with fewer clusters than others are left out.
        """
        seeds = [randomness.integer(f"start {number}") for number in range(self.config.starts)]
        each = [self._kmeans(updates, seed, restarts=1) for seed in seeds]
        most = max(map(len, each))
        return torch.stack([own for own in each if len(own) == most])

    def _kmeans(self, updates: Sequence[CentroidUpdate], seed: int, restarts: int) -> Tensor:
        points = torch.cat([update.centroids for update in updates])
        sizes = torch.cat([update.sizes for update in updates])
        with section("k-means: server"):
            clustering = kmeans(
                points,
                self.clusters,
                seed=seed,
                restarts=restarts,
                iterations=self.config.iterations,
                weights=sizes if self.config.server_weights == "sizes" else None,
            )
        return clustering.centroids.float()


def _drop_small_clusters(clustering: Clustering, least: int) -> CentroidUpdate | RefusedUpdateError:
    """Return the centroids of clusters of at least ``least`` images; a refusal without any."""
    enough = clustering.sizes >= least
    if not bool(enough.any()):
        return RefusedUpdateError(f"none of its clusters has {least} images")
    return CentroidUpdate(clustering.centroids[enough].float(), clustering.sizes[enough])
