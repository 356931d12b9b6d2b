"""The interface of a clustering system: what it has to define, and what is optional."""

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
    """Everything that the server and each client need to make the algorithm of a run.

    Attributes:
        config: Configuration of the run.
        image_shape: Channels, height and width of an image; (d,) if the data are vectors.
        clusters: Number of clusters k, or its largest candidate.
        device: Device of the computation.
        samples: Images of all clients that take part in the run; 0 if nothing is trained.
        fewest: Smallest candidate for k if k is chosen from the data; else 0.
        grows: Whether new clients may join later, with clusters of their own.
        protected: Whether the server sees only sums over clients, no single client's.
        noisy: Whether noise is added to sums, so that each exchange spends privacy budget.
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


def rank_candidates(found: Tensor, fewest: int) -> list[int]:
    """Return the candidate numbers of clusters, the one with the most evidence first."""
    return [fewest + place for place in found.argsort(descending=True, stable=True).tolist()]


def describe_chosen_number(evidence: Tensor, fewest: int, clusters: int) -> dict[str, object]:
    """Return the facts on the chosen number of clusters, for a summary.

    Args:
        evidence: The evidence for each candidate number.
        fewest: Smallest candidate.
        clusters: The chosen number.
    """
    return {
        "clusters": clusters,
        "clusters_runner_up": rank_candidates(evidence, fewest)[1],
        "clusters_evidence": {str(k): each for k, each in enumerate(evidence.tolist(), fewest)},
    }


class ClusteringState(Protocol):
    """Interface of a clustering system's server state: a dataclass with centroids."""

    @property
    def centroids(self) -> Tensor | None:
        """Global centroids of shape (at most k, dimensions); None before the first ones."""
        ...


AnyClusteringState = TypeVar("AnyClusteringState", bound=ClusteringState)


class ClusteringAlgorithm(Algorithm[AnyClusteringState]):
    """Base class of algorithms that cluster images.

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

    def knows_clusters(self, state: AnyClusteringState) -> bool:
        """Return whether the state has centroids, so that images can be assigned."""
        return state.centroids is not None

    def centres(self, state: AnyClusteringState) -> Tensor | None:
        """Return the centre of each cluster, of shape (k, dimensions); None before the first."""
        return state.centroids

    def probabilities(self, known: Any, client: Client) -> Tensor | None:
        """Return the probability of each cluster, or the membership in it, for a client's images.

        Args:
            known: The server's state, or what clients receive at the end (``final_model``).
            client: The client whose images are assigned.

        Returns:
            Floats of shape (samples, k), whose rows sum to 1; None if the system has none.
        """
        return None

    @abstractmethod
    def assign(self, state: AnyClusteringState, client: Client) -> Tensor:
        """Assign each image of a client to a cluster, int64 of shape (samples,).

        Raises:
            FederationError: The state has no centroids.
        """

    @abstractmethod
    def represent(self, state: AnyClusteringState, client: Client) -> Tensor | None:
        """Map a client's images to points in the space of the centroids, by a state or a delivery.

        Returns:
            Floats of shape (samples, dimensions); None before there are centroids.
        """

    @abstractmethod
    def final_model(self, state: AnyClusteringState) -> object:
        """Return the tensors, as a dataclass, by which clients assign images after the run."""

    @property
    def final_model_type(self) -> type[object]:
        """The type of what ``final_model`` returns."""
        return self.state_type

    def assign_by_model(self, final_model: Any, client: Client) -> Tensor:
        """Assign each image of a client by a delivery, as ``assign`` does by a state.

        Raises:
            FederationError: The delivery has no centroids.
        """
        return self.assign(final_model, client)

    def pictures(self, state: AnyClusteringState) -> Mapping[str, Tensor]:
        """Return pictures of the run by name, each uint8 of shape (height, width, 3)."""
        return {}

    def describe(self) -> dict[str, object]:
        """Return facts for the summary that are not in the configuration."""
        return {}

    def summarize(self, state: AnyClusteringState) -> dict[str, object]:
        """Return facts of the last state for the summary, such as the chosen number of clusters."""
        return {}
