"""Local and global centroids, computed from representations."""

from collections.abc import Sequence

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


class CentroidRule:
    """Rule that maps representations to centroids and labels."""

    def __init__(self, config: CentroidConfig, clusters: int) -> None:
        self.config = config
        self.clusters = clusters

    @property
    def unit_length(self) -> bool:
        """Whether the representations that are clustered are normalised."""
        return self.config.assignment == "cosine"

    def points(self, latents: Tensor) -> Tensor:
        """Return the representations to cluster, normalised for cosine similarity."""
        return F.normalize(latents, dim=1) if self.unit_length else latents

    def assign(self, latents: Tensor, centroids: Tensor) -> Tensor:
        """Return the index of each representation's centroid, int64 of shape (samples,)."""
        rule = most_similar if self.unit_length else nearest
        return rule(self.points(latents), centroids)

    def local_centroids(
        self, latents: Sequence[Tensor], sources: Sequence[Randomness], least: int = 0
    ) -> list[CentroidUpdate | RefusedUpdateError]:
        """Run k-means on each client's representations.

        Args:
            latents: Representations of each client's images, of shape (samples, latent).
            sources: Each client's source of random numbers.
            least: The fewest images over which a client sends a centroid.

        Returns:
            Centroids, as many as samples for a client with fewer than k; or a refusal for a client
            whose representations hold NaN or Inf: its model has diverged; or for one all of whose
            clusters are too small.
        """
        points = [self.points(own) for own in latents]
        usable = [place for place, own in enumerate(points) if bool(torch.isfinite(own).all())]
        with section("k-means: clients"):
            found = kmeans_of_each(
                [points[place] for place in usable],
                self.clusters,
                seeds=[sources[place].integer("k-means") for place in usable],
                restarts=self.config.restarts,
                iterations=self.config.iterations,
            )
        refused = RefusedUpdateError("its representations hold NaN or Inf")
        updates: list[CentroidUpdate | RefusedUpdateError] = [refused] * len(points)
        for place, own in zip(usable, found, strict=True):
            updates[place] = _with_enough(own, least)
        return updates

    def global_centroids(self, updates: Sequence[CentroidUpdate], randomness: Randomness) -> Tensor:
        """Run k-means at the server over all uploaded centroids."""
        points = torch.cat([update.centroids for update in updates])
        sizes = torch.cat([update.sizes for update in updates])
        with section("k-means: server"):
            found = kmeans(
                points,
                self.clusters,
                seed=randomness.integer("k-means"),
                restarts=self.config.restarts,
                iterations=self.config.iterations,
                weights=sizes if self.config.server_weights == "sizes" else None,
            )
        return found.centroids.float()


def _with_enough(found: Clustering, least: int) -> CentroidUpdate | RefusedUpdateError:
    """Return the centroids with at least ``least`` images; a refusal if there is none."""
    enough = found.sizes >= least
    if not bool(enough.any()):
        return RefusedUpdateError(f"none of its clusters has {least} images")
    return CentroidUpdate(found.centroids[enough].float(), found.sizes[enough])
