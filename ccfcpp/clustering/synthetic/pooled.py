"""Systems in which images go up, once, and the server clusters them.

``km`` and ``fcm``, the tables' centralised systems, send the clients' own images. SDA-FC (Yan, Liu,
Qi and Zhang, *Federated Clustering with GAN-based Data Synthesis*, 2022) and PPFC-GAN (the same,
*Privacy-Preserving Federated Deep Clustering Based on GAN*, 2022) send synthetic ones, which a
generative adversarial network makes at each client. The server's clustering is k-means, fuzzy
c-means or a deep clustering network.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ccfcpp.clustering.ccfc.centroids import required_centroids
from ccfcpp.clustering.kmeans.fuzzy import fuzzy_c_means
from ccfcpp.clustering.kmeans.server import kmeans, nearest, own_points
from ccfcpp.clustering.shallow.pixels import PixelRule
from ccfcpp.clustering.synthetic.deep_clustering import DeepClustering
from ccfcpp.clustering.synthetic.gan_training import GANLosses, GANTrainer
from ccfcpp.core.config import CentroidConfig, FuzzyConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Exchange, Figures, RefusedUpdateError
from ccfcpp.engine.client import Client
from ccfcpp.models.stack.layout import ModelState

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
    """

    client: int
    images: Tensor


class ServerClustering(Protocol):
    """From pooled images to centroids."""

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Figures]:
        """Cluster uint8 images of shape (images, channels, height, width)."""
        ...

    @property
    def by_angle(self) -> bool:
        """Whether images belong to the centroid of the nearest direction."""
        ...

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Images as points in the centroids' space, of shape (images, dimensions)."""
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

    @property
    def by_angle(self) -> bool:
        """Whether images belong to the centroid of the nearest direction."""
        return self.rule.by_angle

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Images as points, of shape (images, pixels)."""
        return self.rule.points(images)

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
        generator = randomness.generator("fuzzy c-means")
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

    @property
    def by_angle(self) -> bool:
        """Whether images belong to the centroid of the nearest direction."""
        return self.rule.by_angle

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Images as points, of shape (images, pixels)."""
        return self.rule.points(images)

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

    by_angle = False

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Latents, of shape (images, latent)."""
        assert state.encoder is not None
        return self.network.encode(state.encoder, images)

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        """The nearest centroid in the latent space."""
        return nearest(self.represent(state, images), required_centroids(state.centroids))


@dataclass(frozen=True)
class GANEpoch:
    """Clients train their GANs for an epoch, each by itself: nothing travels."""

    trainer: GANTrainer
    name = "GAN epoch"
    uses_memory = True
    travels = False

    @property
    def cohort(self) -> int:
        """As many clients as the trainer takes at a time."""
        return self.trainer.cohort

    def broadcast(self, state: PooledState) -> PooledState:
        """Nothing."""
        return PooledState()

    def local_updates(
        self, message: PooledState, clients: Sequence[Client], randomness: Randomness
    ) -> list[GANLosses | RefusedUpdateError]:
        """The losses of each client; its networks stay with it."""
        return self.trainer.train_epoch(clients, randomness)

    def check(self, message: PooledState, update: GANLosses) -> None:
        """There is nothing that could be wrong."""

    def aggregate(
        self, state: PooledState, updates: Iterable[GANLosses], randomness: Randomness
    ) -> tuple[PooledState, Figures]:
        """The mean losses over the images of the clients that could train."""
        trained, figures = 0, {"generator_loss": 0.0, "discriminator_loss": 0.0}
        for update in updates:
            if update.generator is not None and update.discriminator is not None:
                trained += update.samples
                figures["generator_loss"] += update.samples * update.generator
                figures["discriminator_loss"] += update.samples * update.discriminator
        return state, {name: total / trained for name, total in figures.items() if trained}


@dataclass(frozen=True)
class Pooling:
    """Images go up, and the server clusters them.

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
    travels = True
    cohort = 1

    @property
    def uses_memory(self) -> bool:
        """For their generators."""
        return self.trainer is not None

    def broadcast(self, state: PooledState) -> PooledState:
        """Nothing: clients need nothing."""
        return PooledState()

    def local_updates(
        self, message: PooledState, clients: Sequence[Client], randomness: Randomness
    ) -> list[ImagesUpdate | RefusedUpdateError]:
        """The clients' own images, or synthetic ones, after which the networks are forgotten."""
        if self.trainer is None:
            return [ImagesUpdate(client.id, client.images) for client in clients]
        drawn = self.trainer.draw(clients, randomness)
        for client in clients:
            client.memory = {}
        return [
            images if isinstance(images, RefusedUpdateError) else ImagesUpdate(client.id, images)
            for client, images in zip(clients, drawn, strict=True)
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
        pooled = torch.cat([update.images for update in received])
        clustered, figures = self.clustering.fit(pooled, randomness)
        if self.trainer is not None:
            kept = _SHEET_ROWS * self.clusters
            samples = {str(update.client): update.images[:kept].clone() for update in received}
            clustered = replace(clustered, samples=samples)
        return clustered, figures


class PooledClustering:
    """The algorithm: a round for each epoch of the clients' GANs; images go up in the last one.

    Args:
        pooling: Its exchange that travels.
        epochs: Of the GANs' training.
    """

    state_type = PooledState

    def __init__(self, pooling: Pooling, epochs: int = 0) -> None:
        self.pooling = pooling
        self.rounds = max(1, epochs)

    def has_converged(self, state: PooledState) -> bool:
        """Never before the last round."""
        return False

    def initial_state(self, randomness: Randomness) -> PooledState:
        """Nothing is known."""
        return PooledState()

    def exchanges(self, number: int, state: PooledState) -> Sequence[Exchange[PooledState]]:
        """Training, where there is something to train; in the last round images."""
        exchanges: list[Exchange[PooledState]] = []
        if self.pooling.trainer is not None:
            exchanges.append(GANEpoch(self.pooling.trainer))
        if number == self.rounds - 1:
            exchanges.append(self.pooling)
        return exchanges

    def assign(self, state: PooledState, holder: Client) -> Tensor:
        """The cluster of each image, int64 of shape (samples,)."""
        required_centroids(state.centroids)
        return self.pooling.clustering.assign(state, holder.images)

    @property
    def by_angle(self) -> bool:
        """Whether images belong to the centroid of the nearest direction."""
        return self.pooling.clustering.by_angle

    def represent(self, state: PooledState, holder: Client) -> Tensor:
        """Images as points in the centroids' space, of shape (samples, dimensions)."""
        return self.pooling.clustering.represent(state, holder.images)

    def delivery(self, state: PooledState) -> PooledState:
        """The centroids, and the encoder where there is one; decoders stay at the server."""
        encoder = state.encoder and {
            name: entry for name, entry in state.encoder.items() if name.startswith("encoder.")
        }
        return PooledState(state.centroids, encoder)

    def describe(self) -> dict[str, object]:
        """What a summary says of the system."""
        return {"cohort": self.pooling.trainer.cohort} if self.pooling.trainer else {}
