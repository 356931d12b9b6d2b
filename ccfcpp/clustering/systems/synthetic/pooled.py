"""Systems whose clients send images once, which the server clusters.

In ``km`` and ``fcm``, the centralised systems of the tables, clients send their own images. In
SDA-FC (Yan, Liu, Qi and Zhang, *Federated Clustering with GAN-based Data Synthesis*, 2022) and
PPFC-GAN (same authors, *Privacy-Preserving Federated Deep Clustering Based on GAN*, 2022) they send
synthetic images of a generative adversarial network. The server runs k-means, fuzzy c-means or a
deep clustering network.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.kmeans.config import FuzzyConfig, KMeansConfig
from ccfcpp.clustering.kmeans.fuzzy import fuzzy_c_means
from ccfcpp.clustering.kmeans.server import kmeans, nearest, single_point_clusters
from ccfcpp.clustering.systems.shallow.pixels import PixelRule
from ccfcpp.clustering.systems.synthetic.config import GANConfig
from ccfcpp.clustering.systems.synthetic.deep_clustering import DeepClustering
from ccfcpp.clustering.systems.synthetic.gan_training import (
    GANLosses,
    GANTrainer,
    gan_training_bytes,
    network_makers,
)
from ccfcpp.core.config import ComputeConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    ClientSide,
    ClientWork,
    Exchange,
    Metrics,
    Nothing,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.payload import check_samples
from ccfcpp.engine.threads import choose_cohort, threaded
from ccfcpp.engine.update_format import Rows, Spec, UpdateFormat
from ccfcpp.models.state import ModelState
from ccfcpp.models.steps import train_side_by_side
from ccfcpp.runs.contact_sheets import contact_sheet

_SHEET_ROWS = 8
"""Number of each client's synthetic images of each code that the server keeps."""


@dataclass(frozen=True)
class PooledState:
    """The server's state: centroids, their encoder, and samples of the clients' images.

    Attributes:
        centroids: Global centroids of shape (at most k, dimensions); None before there are images.
        encoder: Network whose latent space contains the centroids; None if they are pixels.
        images: Some synthetic images of each client by its number, uint8 of shape
            (images, channels, height, width).
    """

    centroids: Tensor | None = None
    encoder: ModelState | None = None
    images: ModelState | None = None


@dataclass(frozen=True)
class ImagesUpdate:
    """A client's update: its own or its synthetic images.

    Attributes:
        client: The client's number.
        images: uint8 of shape (images, channels, height, width), or vectors, float64 (vectors, d).
    """

    client: int
    images: Tensor


class ServerClustering(ABC):
    """Base class of the algorithms by which the server clusters the images that clients send."""

    by_angle = False
    """Whether images are assigned by cosine similarity."""

    @abstractmethod
    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Cluster uint8 images of shape (images, channels, height, width)."""

    @abstractmethod
    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Map images to points in the centroids' space, of shape (images, dimensions)."""

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        """Assign each image to its nearest centroid, int64 of shape (images,)."""
        return nearest(self.represent(state, images), required_centroids(state.centroids))


class _OfPixels(ServerClustering):
    def __init__(self, problem: Problem) -> None:
        self.config = problem.config
        self.rule = PixelRule.of(problem)
        self.clusters = problem.clusters
        self.by_angle = self.rule.by_angle

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        return self.rule.points(images)

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        return self.rule.assign(images, required_centroids(state.centroids))


class PixelKMeans(_OfPixels):
    """The server's k-means on the pixels of the images that clients send."""

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Run k-means from several starts, and return the best result."""
        choices = self.config.section(KMeansConfig)
        with section("k-means: server"):
            found = kmeans(
                self.rule.points(images),
                self.clusters,
                seed=randomness.integer("k-means"),
                restarts=choices.restarts,
                iterations=choices.iterations,
            )
        return PooledState(found.centroids), {"inertia": found.inertia}


class PixelFuzzyCMeans(_OfPixels):
    """The server's fuzzy c-means on the pixels of the images that clients send."""

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Run fuzzy c-means from several starts of random images, and return the best result."""
        points = self.rule.points(images)
        if len(points) <= self.clusters:
            return PooledState(single_point_clusters(points).centroids), {}
        choices = self.config.section(FuzzyConfig)
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


class LatentKMeans(ServerClustering):
    """The deep clustering network of PPFC-GAN."""

    def __init__(self, problem: Problem) -> None:
        self.network = DeepClustering(problem)

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Train the autoencoder together with the centroids."""
        found = self.network.fit(images, randomness)
        return PooledState(found.centroids, found.model), found.figures

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Map images to latents, of shape (images, latent)."""
        assert state.encoder is not None
        return self.network.encode(state.encoder, images)


_MOST_IMAGES = 10**9
"""Largest number of images of one client."""

OWN_IMAGES = Exchange("images", Nothing, ImagesUpdate)
SYNTHETIC_IMAGES = Exchange("images", Nothing, ImagesUpdate, uses_memory=True)
GAN_EPOCH = Exchange("GAN epoch", Nothing, GANLosses, uses_memory=True, travels=False)


class OwnImages(ClientWork[Nothing, ImagesUpdate]):
    """Client side of an exchange in which clients send all their images."""

    exchange = OWN_IMAGES

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[ImagesUpdate]:
        """Return all images, or vectors, of each client."""
        return [ImagesUpdate(client.id, _on_its_way(client.images)) for client in clients]


def _on_its_way(samples: Tensor) -> Tensor:
    return samples.double() if samples.is_floating_point() else samples


class GANEpoch(ClientWork[Nothing, GANLosses]):
    """The clients' training of their GANs for an epoch."""

    exchange = GAN_EPOCH

    def __init__(self, trainers: Sequence[GANTrainer]) -> None:
        self.trainers = trainers
        self.cohort = len(trainers)

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[GANLosses | RefusedUpdateError]:
        """Train, and return the losses of each client; its networks stay with it."""
        trainings = [
            trainer.train_epoch(client, randomness)
            for trainer, client in zip(self.trainers, clients, strict=False)
        ]
        return train_side_by_side(trainings, self.trainers[0].device)


@dataclass(frozen=True)
class SyntheticImages(ClientWork[Nothing, ImagesUpdate]):
    """The clients' images drawn by their GANs, which are then deleted."""

    trainer: GANTrainer
    exchange = SYNTHETIC_IMAGES

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[ImagesUpdate | RefusedUpdateError]:
        """Draw the images of each client."""
        drawn = [self.trainer.draw(client, randomness) for client in clients]
        for client in clients:
            client.memory = {}
        return [
            images if isinstance(images, RefusedUpdateError) else ImagesUpdate(client.id, images)
            for client, images in zip(clients, drawn, strict=True)
        ]


@dataclass(frozen=True)
class MeanGANLosses(ServerWork[PooledState, Nothing, GANLosses]):
    """The server's report of an epoch of the GANs; no image is sent."""

    exchange = GAN_EPOCH

    def broadcast(self, state: PooledState) -> Nothing:
        """Return an empty message."""
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        """Return an update's shapes and dtypes: image count, and losses if trained."""
        loss = Spec(torch.float64, optional=True)
        return {"samples": Spec(torch.int64), "generator": loss, "discriminator": loss}

    def check(self, message: Nothing, update: GANLosses, senders: Sequence[Member]) -> None:
        """Refuse a number of images that is not the client's."""
        check_samples(update.samples, senders)

    def aggregate(
        self, state: PooledState, updates: Iterable[GANLosses], randomness: Randomness
    ) -> tuple[PooledState, Metrics]:
        """Average the losses over the images of the clients that could train."""
        trained, figures = 0, {"generator_loss": 0.0, "discriminator_loss": 0.0}
        for update in updates:
            if update.generator is not None and update.discriminator is not None:
                trained += update.samples
                figures["generator_loss"] += update.samples * update.generator
                figures["discriminator_loss"] += update.samples * update.discriminator
        return state, {name: total / trained for name, total in figures.items() if trained}


@dataclass(frozen=True)
class Pooling(ServerWork[PooledState, Nothing, ImagesUpdate]):
    """The server's clustering of the images that clients send."""

    exchange: Exchange[Nothing, ImagesUpdate]
    clustering: ServerClustering
    image_shape: tuple[int, ...]
    kept: int = 0

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of images, or of vectors that are sent."""
        return torch.uint8 if len(self.image_shape) > 1 else torch.float64

    def broadcast(self, state: PooledState) -> Nothing:
        """Return an empty message."""
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        """Return an update's shapes and dtypes: any number of images of the run's shape."""
        images = Spec(self.dtype, (Rows(_MOST_IMAGES), *self.image_shape))
        return {"client": Spec(torch.int64), "images": images}

    def check(self, message: Nothing, update: ImagesUpdate, senders: Sequence[Member]) -> None:
        """Refuse images that claim to be another client's."""
        if [update.client] != [sender.id for sender in senders]:
            raise RefusedUpdateError(f"it claims to be of client {update.client}")

    def aggregate(
        self, state: PooledState, updates: Iterable[ImagesUpdate], randomness: Randomness
    ) -> tuple[PooledState, Metrics]:
        """Cluster all images together."""
        received = list(updates)
        pooled = torch.cat([update.images for update in received])
        clustered, figures = self.clustering.fit(pooled, randomness)
        if self.kept:
            kept = {str(update.client): update.images[: self.kept].clone() for update in received}
            clustered = replace(clustered, images=kept)
        return clustered, figures


class PooledClustering(ClusteringAlgorithm[PooledState]):
    """The centralised systems: in a single round clients send their own images."""

    state_type = PooledState
    rounds = 1

    def __init__(self, problem: Problem, clustering: Callable[[Problem], ServerClustering]) -> None:
        self.problem = problem
        self.clustering = clustering(problem)
        self.by_angle = self.clustering.by_angle

    def initial_state(self, randomness: Randomness) -> PooledState:
        """Return a state without centroids."""
        return PooledState()

    def exchanges(self, number: int, state: PooledState) -> Sequence[Pooling | MeanGANLosses]:
        """Return the only exchange, in which clients send images."""
        return [Pooling(OWN_IMAGES, self.clustering, self.problem.image_shape)]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work: sending their own images."""
        return ClientSide.of(OwnImages())

    def assign(self, state: PooledState, client: Client) -> Tensor:
        """Assign each image to a cluster, int64 of shape (samples,)."""
        required_centroids(state.centroids)
        return self.clustering.assign(state, client.images)

    def represent(self, state: PooledState, client: Client) -> Tensor | None:
        """Map images to points in the centroids' space; None before there are centroids."""
        if state.centroids is None:
            return None
        return self.clustering.represent(state, client.images)

    def final_model(self, state: PooledState) -> PooledState:
        """Return what clients need to assign images: centroids, and the encoder if any."""
        encoder = state.encoder and {
            name: entry for name, entry in state.encoder.items() if name.startswith("encoder.")
        }
        return PooledState(state.centroids, encoder)


class SyntheticClustering(PooledClustering):
    """Systems of synthetic images, which clients send in the last epoch of their GANs.

    Each round is an epoch.

    Raises:
        UsageError: The images do not fit the clients' networks.
    """

    def __init__(self, problem: Problem, clustering: Callable[[Problem], ServerClustering]) -> None:
        super().__init__(problem, clustering)
        self.gan = problem.config.section(GANConfig)
        self.rounds = self.gan.epochs
        # A run whose images do not fit the networks is refused before it begins.
        with torch.device("meta"):
            for make in network_makers(self.gan, problem.image_shape, problem.clusters):
                make()

    def exchanges(self, number: int, state: PooledState) -> Sequence[Pooling | MeanGANLosses]:
        """Return the training of the GANs, and in the last round the exchange of images, too."""
        works: list[Pooling | MeanGANLosses] = [MeanGANLosses()]
        if number == self.rounds - 1:
            kept = _SHEET_ROWS * self.problem.clusters
            shape = self.problem.image_shape
            works.append(Pooling(SYNTHETIC_IMAGES, self.clustering, shape, kept))
        return works

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' work: training GANs, and sending images that they draw."""
        problem, codes = self.problem, self.problem.clusters
        bytes_of_one = gan_training_bytes(self.gan, problem.image_shape, codes, context.largest)
        compute = problem.config.section(ComputeConfig)
        cohort = choose_cohort(compute.cohort, context.together, bytes_of_one, problem.device)
        shape, device = problem.image_shape, problem.device
        threads = [
            [
                GANTrainer(self.gan, shape, codes, device, compute.precision)
                for _ in range(cohort.together)
            ]
            for _ in range(cohort.threads)
        ]
        return ClientSide.of(
            threaded([GANEpoch(own) for own in threads]),
            threaded([SyntheticImages(own[0]) for own in threads]),
            cohort=cohort.clients,
        )

    def pictures(self, state: PooledState) -> Mapping[str, Tensor]:
        """Arrange each client's synthetic images on a sheet with a column for each code."""
        return {
            f"synthetic-client-{number}": contact_sheet(images, self.problem.clusters)
            for number, images in (state.images or {}).items()
        }
