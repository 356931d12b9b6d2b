"""The interface that a clustering system implements."""

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
    """Configuration, data shape, number of clusters and device, from which an algorithm is made.

    Attributes:
        config: Configuration of the run.
        image_shape: Channels, height and width of an image; (d,) if the data are vectors.
        clusters: Number of clusters k; if k is chosen from the data, its largest candidate.
        device: Device on which tensors are stored and computed.
        samples: Number of images of all clients that take part; 0 if nothing is trained.
        fewest: Smallest candidate for k if k is chosen from the data; else 0.
        grows: Whether new clients may join later, with clusters of their own.
        protected: Whether the server sees only sums over all clients, not a single client's update.
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


def rank_candidates(evidence: Tensor, fewest: int) -> list[int]:
    """Return the candidates for k (``fewest``, ``fewest`` + 1, …), that of most evidence first."""
    return [fewest + index for index in evidence.argsort(descending=True, stable=True).tolist()]


def describe_chosen_number(evidence: Tensor, fewest: int, clusters: int) -> dict[str, object]:
    """Return the run summary's entries on the choice of k: k, its runner-up and all evidence.

    Args:
        evidence: Evidence for each candidate number, of shape (candidates,); higher is better.
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
        """Global centroids of shape (at most k, dimensions); None before there are any."""
        ...


Decoder = tuple[Callable[[Tensor], tuple[Tensor, ...]], Tensor]
"""A network whose first output are flat images in [0, 1], and latents near a client's clusters."""
AnyClusteringState = TypeVar("AnyClusteringState", bound=ClusteringState)


class ClusteringAlgorithm(Algorithm[AnyClusteringState]):
    """Base class of clustering algorithms.

    A subclass defines the rounds, and how the server's state assigns an image to a cluster. All
    other methods are optional.

    Attributes:
        by_angle: Whether an image is assigned to the centroid with the highest cosine similarity;
            if not, to the nearest centroid.
        by_pixels: Whether centroids are mean images, so that one over a single image reveals it.
        by_model: Function that maps a model and uint8 images (images, channels, height, width) to
            representations, floats of shape (images, dimensions). It serves to compare local
            models with the global one. None if the algorithm trains no model.
        by_decoder: Function that maps a client's update of the first round, and a source of random
            numbers, to the ``Decoder`` in it. None if clients send no decoder.
    """

    by_angle: bool = False
    by_pixels: bool = False
    by_model: Callable[[ModelState, Tensor], Tensor] | None = None
    by_decoder: Callable[[Any, torch.Generator], Decoder] | None = None

    def knows_clusters(self, state: AnyClusteringState) -> bool:
        """Return whether images can be assigned to clusters: whether the state has centroids."""
        return state.centroids is not None

    def centres(self, state: AnyClusteringState) -> Tensor | None:
        """Return the centre of each cluster, of shape (k, dimensions); None if there are none."""
        return state.centroids

    def probabilities(self, known: Any, client: Client) -> Tensor | None:
        """Return the probability of each cluster, or the membership in it, for a client's images.

        Args:
            known: The server's state or the final model.
            client: The client whose images are assigned.

        Returns:
            Floats of shape (samples, k), whose rows sum to 1; None if the system has none.
        """
        return None

    @abstractmethod
    def assign(self, state: AnyClusteringState, client: Client) -> Tensor:
        """Return the cluster of each image of a client, int64 of shape (samples,).

        Raises:
            FederationError: The state has no centroids.
        """

    @abstractmethod
    def represent(self, state: AnyClusteringState, client: Client) -> Tensor | None:
        """Map a client's images to points in the centroids' space, by a state or a final model.

        Returns:
            Floats of shape (samples, dimensions); None before there are centroids.
        """

    @abstractmethod
    def final_model(self, state: AnyClusteringState) -> object:
        """Return the model that clients need to assign images after the run: a dataclass."""

    @property
    def final_model_type(self) -> type[object]:
        """The class of the final model."""
        return self.state_type

    def assign_by_model(self, final_model: Any, client: Client) -> Tensor:
        """Return the cluster of each image of a client under a final model, as ``assign`` does.

        Raises:
            FederationError: The final model has no centroids.
        """
        return self.assign(final_model, client)

    def pictures(self, state: AnyClusteringState) -> Mapping[str, Tensor]:
        """Return RGB pictures to save with the run, by name; uint8 of shape (height, width, 3)."""
        return {}

    def describe(self) -> dict[str, object]:
        """Return entries for the run's summary that are known before the run."""
        return {}

    def summarize(self, state: AnyClusteringState) -> dict[str, object]:
        """Return entries for the run's summary from the last state, such as the chosen k."""
        return {}
