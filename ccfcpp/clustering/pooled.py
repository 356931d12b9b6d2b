"""Systems in which images go up, once, and the server clusters them.

``km`` and ``fcm``, the tables' centralised systems, send the clients' own images. SDA-FC (Yan et
al., *Privacy-Preserving Federated Deep Clustering Based on GAN* and its predecessor) and PPFC-GAN
send synthetic ones, which a generative adversarial network makes at each client. The server's
clustering is k-means, fuzzy c-means or a deep clustering network.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ccfcpp.clustering.centroids import required_centroids
from ccfcpp.clustering.deep_clustering import DeepClustering
from ccfcpp.clustering.fuzzy import fuzzy_c_means
from ccfcpp.clustering.gan_training import GANTrainer
from ccfcpp.clustering.kmeans import kmeans, nearest, own_points
from ccfcpp.clustering.one_shot import OneShot
from ccfcpp.clustering.pixels import PixelRule
from ccfcpp.config import CentroidConfig, FuzzyConfig
from ccfcpp.engine.algorithm import Figures, RefusedUpdateError
from ccfcpp.engine.client import Client
from ccfcpp.models.layout import ModelState
from ccfcpp.profiling import section
from ccfcpp.randomness import Randomness, generator_of

_SHEET_ROWS = 8
"""Samples of each code that the server keeps of a client's synthetic images."""


@dataclass(frozen=True)
class PooledState:
    """What the server knows.

    Attributes:
        centroids: Global centroids of shape (at most k, dimensions); None before there are images.
        encoder: The network in whose latent space they lie; None where that is the pixels'.
        samples: Some synthetic images of each client by its number, uint8 of shape
            (samples, channels, height, width).
    """

    centroids: Tensor | None = None
    encoder: ModelState | None = None
    samples: ModelState | None = None


@dataclass(frozen=True)
class ImagesUpdate:
    """A client's images.

    Attributes:
        client: The client's number.
        images: uint8 of shape (images, channels, height, width).
        generator_loss: Mean loss of the last epoch; None where the images are the client's own.
        discriminator_loss: Likewise.
    """

    client: int
    images: Tensor
    generator_loss: float | None = None
    discriminator_loss: float | None = None


class ServerClustering(Protocol):
    """From pooled images to centroids."""

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Figures]:
        """Cluster uint8 images of shape (images, channels, height, width)."""
        ...

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        """The cluster of each image, int64 of shape (images,)."""
        ...


@dataclass(frozen=True)
class PixelKMeans:
    """k-means of the pixels."""

    rule: PixelRule
    clusters: int
    choices: CentroidConfig

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Figures]:
        """The best of several restarts."""
        with section("k-means: server"):
            found = kmeans(
                self.rule.points(images),
                self.clusters,
                seed=randomness.integer("k-means"),
                restarts=self.choices.restarts,
                iterations=self.choices.iterations,
            )
        return PooledState(found.centroids), {"inertia": found.inertia}

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        """The nearest or most similar centroid."""
        return self.rule.assign(images, required_centroids(state.centroids))


@dataclass(frozen=True)
class PixelFuzzyCMeans:
    """Fuzzy c-means of the pixels."""

    rule: PixelRule
    clusters: int
    choices: FuzzyConfig

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Figures]:
        """The best of several restarts, each from randomly chosen images."""
        points = self.rule.points(images)
        if len(points) <= self.clusters:
            return PooledState(own_points(points).centroids), {}
        choices = self.choices
        generator = generator_of(randomness.integer("fuzzy c-means"))
        with section("fuzzy c-means: server"):
            found = [
                fuzzy_c_means(
                    points,
                    points[torch.randperm(len(points), generator=generator)[: self.clusters]],
                    m=choices.m,
                    tolerance=choices.tolerance,
                    iterations=choices.iterations,
                )
                for _ in range(choices.restarts)
            ]
        best = min(found, key=lambda clustering: clustering.objective)
        return PooledState(best.centroids), {"objective": best.objective}

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        """The nearest centroid has the largest membership."""
        return self.rule.assign(images, required_centroids(state.centroids))


@dataclass(frozen=True)
class LatentKMeans:
    """A deep clustering network, as PPFC-GAN has it."""

    network: DeepClustering

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Figures]:
        """Autoencoder and centroids, trained together."""
        found = self.network.fit(images, randomness)
        return PooledState(found.centroids, found.model), found.figures

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        """The nearest centroid in the latent space."""
        assert state.encoder is not None
        latents = self.network.encode(state.encoder, images)
        return nearest(latents, required_centroids(state.centroids))


@dataclass(frozen=True)
class Pooling:
    """The one exchange: images go up.

    Attributes:
        clustering: What the server does with them.
        image_shape: Channels, height and width of an image.
        clusters: Number of clusters k, also of the generators' codes.
        trainer: Makes synthetic images; None where clients send their own.
    """

    clustering: ServerClustering
    image_shape: tuple[int, ...]
    clusters: int
    trainer: GANTrainer | None
    name = "images"
    uses_memory = False
    travels = True

    @property
    def cohort(self) -> int:
        """As many clients as the trainer takes at a time."""
        return self.trainer.cohort if self.trainer else 1

    def broadcast(self, state: PooledState) -> PooledState:
        """Nothing: clients begin by themselves."""
        return PooledState()

    def local_updates(
        self, message: PooledState, clients: Sequence[Client], randomness: Randomness
    ) -> list[ImagesUpdate | RefusedUpdateError]:
        """The clients' own images, or synthetic ones."""
        if self.trainer is None:
            return [ImagesUpdate(client.id, client.images) for client in clients]
        made = self.trainer.train(clients, randomness)
        return [
            own
            if isinstance(own, RefusedUpdateError)
            else ImagesUpdate(client.id, own.images, own.generator_loss, own.discriminator_loss)
            for client, own in zip(clients, made, strict=True)
        ]

    def check(self, message: PooledState, update: ImagesUpdate) -> None:
        """Refuse what are no images of the right shape."""
        images = update.images
        if images.dtype != torch.uint8 or len(images) == 0 or images.shape[1:] != self.image_shape:
            raise RefusedUpdateError(
                f"images are {images.dtype} {tuple(images.shape)}, expected torch.uint8 "
                f"(1 or more, {', '.join(map(str, self.image_shape))})"
            )

    def aggregate(
        self, state: PooledState, updates: Iterable[ImagesUpdate], randomness: Randomness
    ) -> tuple[PooledState, Figures]:
        """Cluster all images together; of synthetic ones some are kept, to be looked at."""
        received = list(updates)
        clustered, figures = self.clustering.fit(
            torch.cat([update.images for update in received]), randomness
        )
        if self.trainer is None:
            return clustered, figures
        kept = _SHEET_ROWS * self.clusters
        samples = {str(update.client): update.images[:kept].clone() for update in received}
        return PooledState(clustered.centroids, clustered.encoder, samples), figures | {
            "generator_loss": _mean([update.generator_loss for update in received]),
            "discriminator_loss": _mean([update.discriminator_loss for update in received]),
        }


def _mean(losses: Sequence[float | None]) -> float:
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known)


class PooledClustering(OneShot[PooledState]):
    """The algorithm.

    Args:
        pooling: Its exchange.
    """

    def __init__(self, pooling: Pooling) -> None:
        super().__init__(PooledState, pooling)
        self.pooling = pooling

    def assign(self, state: PooledState, holder: Client) -> Tensor:
        """The cluster of each image, int64 of shape (samples,)."""
        required_centroids(state.centroids)
        return self.pooling.clustering.assign(state, holder.images)

    def describe(self) -> dict[str, object]:
        """What a summary says of the system."""
        return {"cohort": self.pooling.cohort} if self.pooling.trainer else {}
