"""The interface of a system of federated clustering: what it must define, and what it may."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from ccfcpp.core.config import RunConfig
from ccfcpp.engine.algorithm import Algorithm
from ccfcpp.engine.client import Client
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Problem:
    """The setting for which the server and each client make an algorithm.

    Attributes:
        config: Configuration of the run.
        image_shape: Channels, height and width of an image; (d,) where the data are vectors.
        clusters: Number of clusters k; where it is to be found, the largest that it may be.
        device: Device of the computation.
        samples: Images of all clients that take part in the run; 0 where nothing is trained.
        fewest: The least that k may be, where it is to be found; 0 where it is known.
        grows: Whether there may be clients that come later, with clusters of their own.
        protected: Whether nobody's part of a sum is known.
        noisy: Whether noise is added to sums, so that each exchange takes a part of the budget.
    """

    config: RunConfig
    image_shape: tuple[int, ...]
    clusters: int
    device: torch.device
    samples: int = 0
    fewest: int = 0
    grows: bool = False
    protected: bool = False
    noisy: bool = False

    @property
    def has_vectors(self) -> bool:
        """Whether the data are vectors."""
        return len(self.image_shape) == 1


def most_to_least(found: Tensor, fewest: int) -> list[int]:
    """Numbers of clusters, the one with the most evidence first."""
    return [fewest + place for place in found.argsort(descending=True, stable=True).tolist()]


def found_number(evidence: Tensor, fewest: int, clusters: int) -> dict[str, object]:
    """Return what a summary says of the number of clusters that was found.

    Args:
        evidence: How much speaks for each number that it may be.
        fewest: The first of these.
        clusters: The one that was found.
    """
    return {
        "clusters": clusters,
        "clusters_runner_up": most_to_least(evidence, fewest)[1],
        "clusters_evidence": {str(k): each for k, each in enumerate(evidence.tolist(), fewest)},
    }


class ClusteringState(Protocol):
    """State of a clustering system's server: a dataclass with centroids."""

    @property
    def centroids(self) -> Tensor | None:
        """Global centroids of shape (at most k, dimensions); None before the first ones."""
        ...


Clustered = TypeVar("Clustered", bound=ClusteringState)


class ClusteringAlgorithm(Algorithm[Clustered]):
    """An algorithm that clusters images.

    Besides the rounds it defines how the server's state assigns an image to a cluster. Everything
    beyond that is optional.

    Attributes:
        by_angle: Whether images belong to the centroid with the highest cosine similarity; else to
            the nearest one.
        by_pixels: Whether centroids are means of pixels, so that the mean of a single image reveals
            it.
        by_model: Maps a model, and uint8 images (images, channels, height, width), to floats of
            shape (images, dimensions), by which local models are compared with the global one; None
            without models.
    """

    by_angle: bool = False
    by_pixels: bool = False
    by_model: Callable[[ModelState, Tensor], Tensor] | None = None

    def knows_clusters(self, state: Clustered) -> bool:
        """Whether the state has centroids, so that images can be assigned."""
        return state.centroids is not None

    def centres(self, state: Clustered) -> Tensor | None:
        """The centre of each cluster, of shape (k, dimensions); None before there are centroids."""
        return state.centroids

    def probabilities(self, known: Any, holder: Client) -> Tensor | None:
        """The probability of each cluster, or the membership in it, for each image of a holder.

        Args:
            known: A state, or a delivery.
            holder: Holds the images.

        Returns:
            Floats of shape (samples, k), whose rows sum to 1; None where the system gives none.
        """
        return None

    @abstractmethod
    def assign(self, state: Clustered, holder: Client) -> Tensor:
        """Assign each image of a holder to a cluster, int64 of shape (samples,).

        Raises:
            FederationError: The state has no centroids.
        """

    @abstractmethod
    def represent(self, state: Clustered, holder: Client) -> Tensor | None:
        """Map a holder's images to points in the space of the centroids, by a state or a delivery.

        Returns:
            Floats of shape (samples, dimensions); None before there are centroids.
        """

    @abstractmethod
    def delivery(self, state: Clustered) -> object:
        """The dataclass of tensors by which clients assign their images after the run."""

    @property
    def delivery_type(self) -> type[object]:
        """Type of what ``delivery`` returns."""
        return self.state_type

    def assign_delivered(self, delivery: Any, holder: Client) -> Tensor:
        """Assign each image of a holder by a delivery, as ``assign`` does by the state.

        Raises:
            FederationError: The delivery has no centroids.
        """
        return self.assign(delivery, holder)

    def pictures(self, state: Clustered) -> Mapping[str, Tensor]:
        """Pictures of the run by name, each uint8 of shape (height, width, 3)."""
        return {}

    def describe(self) -> dict[str, object]:
        """Facts for the summary that are not in the configuration."""
        return {}

    def found(self, state: Clustered) -> dict[str, object]:
        """Facts of the last state for the summary, such as a number of clusters nobody knew."""
        return {}
