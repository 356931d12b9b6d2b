"""What a system of federated clustering must give, and what it may give."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ccfcpp.core.config import MethodConfig
from ccfcpp.engine.algorithm import Algorithm
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import State
from ccfcpp.models.state import ModelState


@dataclass(frozen=True)
class Problem:
    """What an algorithm is made for, at the server and at each client alike.

    Attributes:
        config: The run's configuration.
        image_shape: Channels, height and width of an image.
        clusters: Number of clusters k.
        device: Where the computation runs.
        samples: Images of all clients that take part in the run; 0 where nothing is trained.
    """

    config: MethodConfig
    image_shape: tuple[int, ...]
    clusters: int
    device: torch.device
    samples: int = 0


class ClusteringState(Protocol):
    """What the server of a clustering system knows: a dataclass that has centroids."""

    @property
    def centroids(self) -> Tensor | None:
        """Global centroids of shape (at most k, dimensions); None before the first ones."""
        ...


Clustered = TypeVar("Clustered", bound=ClusteringState)


@dataclass(frozen=True)
class ModelComparison(Generic[State]):
    """How local models are compared with the global one, where there are models.

    Attributes:
        global_model: The model in a state.
        represent: What a model makes of uint8 images (images, channels, height, width): floats of
            shape (images, dimensions).
    """

    global_model: Callable[[State], ModelState]
    represent: Callable[[ModelState, Tensor], Tensor]


class ClusteringAlgorithm(Algorithm[Clustered]):
    """An algorithm that clusters images.

    Beside the rounds it assigns any image to a cluster, by what the server knows. What it offers
    beyond that has a default here which offers nothing.

    Attributes:
        by_angle: Whether images belong to the centroid of the nearest direction, whatever its
            length; else to the nearest one.
        by_pixels: Whether centroids lie among the pixels: an average of one image is that image.
        comparison: How local models are compared with the global one; None without models.
    """

    by_angle: bool = False
    by_pixels: bool = False
    comparison: ModelComparison[Any] | None = None

    def knows_clusters(self, state: Clustered) -> bool:
        """Whether images can be assigned yet."""
        return state.centroids is not None

    @abstractmethod
    def assign(self, state: Clustered, holder: Client) -> Tensor:
        """The cluster of each image of a holder, int64 of shape (samples,).

        Raises:
            FederationError: The state has no centroids.
        """

    @abstractmethod
    def represent(self, state: Clustered, holder: Client) -> Tensor | None:
        """A holder's images as points in the centroids' space.

        Returns:
            Floats of shape (samples, dimensions); None where the state knows of no such space yet.
        """

    @abstractmethod
    def delivery(self, state: Clustered) -> object:
        """What clients receive in the end, to assign their images: a dataclass of tensors."""

    @property
    def delivery_type(self) -> type[Any]:
        """The dataclass that ``delivery`` gives."""
        return self.state_type

    def assign_delivered(self, delivery: Any, holder: Client) -> Tensor:
        """The cluster of each image of a holder by what was delivered, as ``assign`` has it.

        Raises:
            FederationError: The delivery has no centroids.
        """
        return self.assign(delivery, holder)

    def pictures(self, state: Clustered) -> Mapping[str, Tensor]:
        """What there is to look at by name, each uint8 of shape (height, width, 3)."""
        return {}

    def describe(self) -> dict[str, object]:
        """What a summary says of the system, beside the configuration."""
        return {}
