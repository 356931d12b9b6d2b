"""Systems in which clients send images once, and the server clusters them.

In ``km`` and ``fcm``, the centralised baselines, clients send their own images. In
SDA-FC (Yan, Liu, Qi and Zhang, *Federated Clustering with GAN-based Data Synthesis*, 2022) and
PPFC-GAN (same authors, *Privacy-Preserving Federated Deep Clustering Based on GAN*, 2022) they send
synthetic images, drawn by a generative adversarial network (GAN). The server runs k-means, fuzzy
c-means or a deep clustering network.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

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
    EachClient,
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
"""Number of synthetic images that the server keeps for each client and each code."""


@dataclass(frozen=True)
class PooledState:
    """State of the server: centroids, the encoder if there is one, and sample images.

    Attributes:
        centroids: Global centroids of shape (at most k, dimensions); None before there are images.
        encoder: Weights of the network that maps images to the space of the centroids; None if
            that is the space of pixels.
        images: Some synthetic images of each client, by the client's number, uint8 of shape
            (images, channels, height, width).
    """

    centroids: Tensor | None = None
    encoder: ModelState | None = None
    images: ModelState | None = None


@dataclass(frozen=True)
class ImagesUpdate:
    """The images that a client sends: its own, or synthetic ones.

    Attributes:
        client: The client's number.
        images: uint8 of shape (images, channels, height, width); or vectors, float64 (vectors, d).
    """

    client: int
    images: Tensor


class ServerClustering(ABC):
    """Base class of the algorithms with which the server clusters the images it received."""

    by_angle = False
    """Whether images are assigned by cosine similarity."""

    @abstractmethod
    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Cluster uint8 images (images, channels, height, width); return state and metrics."""

    @abstractmethod
    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Return the images as points in the space of the centroids, (images, dimensions)."""

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        """Return the index of each image's nearest centroid, int64 of shape (images,)."""
        centroids = required_centroids(state.centroids)
        return nearest(self.represent(state, images), centroids)


class _PixelClustering(ServerClustering):
    """Base class of algorithms whose centroids are in the space of pixels."""

    def __init__(self, problem: Problem) -> None:
        self.config = problem.config
        self.rule = PixelRule.of(problem)
        self.clusters = problem.clusters
        self.by_angle = self.rule.by_angle

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        return self.rule.points(images)

    def assign(self, state: PooledState, images: Tensor) -> Tensor:
        return self.rule.assign(images, required_centroids(state.centroids))


class PixelKMeans(_PixelClustering):
    """k-means on pixels, from several initialisations."""

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Run k-means from several initialisations; return the best centroids and their inertia."""
        choices = self.config.section(KMeansConfig)
        with section("k-means: server"):
            clustering = kmeans(
                self.rule.points(images),
                self.clusters,
                seed=randomness.integer("k-means"),
                restarts=choices.restarts,
                iterations=choices.iterations,
            )
        return PooledState(clustering.centroids), {"inertia": clustering.inertia}


class PixelFuzzyCMeans(_PixelClustering):
    """Fuzzy c-means on pixels, from several initialisations."""

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Run fuzzy c-means from several random choices; return the best centroids and the loss."""
        points = self.rule.points(images)
        if len(points) <= self.clusters:
            return PooledState(single_point_clusters(points).centroids), {}
        choices = self.config.section(FuzzyConfig)
        generator = randomness.generator("fuzzy c-means")
        with section("fuzzy c-means: server"):
            clusterings = [
                fuzzy_c_means(
                    points,
                    points[torch.randperm(len(points), generator=generator)[: self.clusters]],
                    m=choices.m,
                    tolerance=choices.tolerance,
                    iterations=choices.iterations,
                )
                for _ in range(choices.restarts)
            ]
        best = min(clusterings, key=lambda clustering: clustering.objective)
        return PooledState(best.centroids), {"objective": best.objective}


class LatentKMeans(ServerClustering):
    """k-means in the latent space of an autoencoder: the deep clustering network of PPFC-GAN."""

    def __init__(self, problem: Problem) -> None:
        self.network = DeepClustering(problem)

    def fit(self, images: Tensor, randomness: Randomness) -> tuple[PooledState, Metrics]:
        """Train the autoencoder together with the centroids; return both, and the mean losses."""
        result = self.network.fit(images, randomness)
        return PooledState(result.centroids, result.model), result.figures

    def represent(self, state: PooledState, images: Tensor) -> Tensor:
        """Return the images' latents, of shape (images, latent)."""
        assert state.encoder is not None
        return self.network.encode(state.encoder, images)


_MOST_IMAGES = 10**9
"""Largest number of images that one client may send."""

OWN_IMAGES = Exchange("images", Nothing, ImagesUpdate)
SYNTHETIC_IMAGES = Exchange("images", Nothing, ImagesUpdate, uses_memory=True)
GAN_EPOCH = Exchange("GAN epoch", Nothing, GANLosses, uses_memory=True, travels=False)


def send_own(message: Nothing, client: Client, randomness: Randomness) -> ImagesUpdate:
    """Return all images of a client, or its vectors in float64."""
    samples = client.images
    return ImagesUpdate(client.id, samples.double() if samples.is_floating_point() else samples)


class GANEpoch(ClientWork[Nothing, GANLosses]):
    """Client side of an epoch of GAN training, with a trainer for each client trained together."""

    exchange = GAN_EPOCH

    def __init__(self, trainers: Sequence[GANTrainer]) -> None:
        self.trainers = trainers
        self.cohort = len(trainers)

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[GANLosses | RefusedUpdateError]:
        """Train each client's GAN for an epoch, and return its losses."""
        trainings = [
            trainer.train_epoch(client, randomness)
            for trainer, client in zip(self.trainers, clients, strict=False)
        ]
        return train_side_by_side(trainings, self.trainers[0].device)


def send_synthetic(
    trainer: GANTrainer, message: Nothing, client: Client, randomness: Randomness
) -> ImagesUpdate | RefusedUpdateError:
    """Return synthetic images that a client's GAN draws, and delete the GAN."""
    drawn = trainer.draw(client, randomness)
    client.memory = {}
    return drawn if isinstance(drawn, RefusedUpdateError) else ImagesUpdate(client.id, drawn)


@dataclass(frozen=True)
class MeanGANLosses(ServerWork[PooledState, Nothing, GANLosses]):
    """Server side of an epoch of the clients' GANs: reports the mean losses."""

    exchange = GAN_EPOCH

    def broadcast(self, state: PooledState) -> Nothing:
        """Return an empty message."""
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        """Return an update's shapes and dtypes: the number of images, and losses if trained."""
        loss = Spec(torch.float64, optional=True)
        return {"samples": Spec(torch.int64), "generator": loss, "discriminator": loss}

    def check(self, message: Nothing, update: GANLosses, senders: Sequence[Member]) -> None:
        """Refuse a number of images that is not the client's."""
        check_samples(update.samples, senders)

    def aggregate(
        self, state: PooledState, updates: Iterable[GANLosses], randomness: Randomness
    ) -> tuple[PooledState, Metrics]:
        """Average the losses over the images of the clients that could train."""
        trained, totals = 0, {"generator_loss": 0.0, "discriminator_loss": 0.0}
        for update in updates:
            if update.generator is not None and update.discriminator is not None:
                trained += update.samples
                totals["generator_loss"] += update.samples * update.generator
                totals["discriminator_loss"] += update.samples * update.discriminator
        return state, {name: total / trained for name, total in totals.items() if trained}


@dataclass(frozen=True)
class ClusterImages(ServerWork[PooledState, Nothing, ImagesUpdate]):
    """Server side of the exchange of images: clusters them, and stores ``kept`` of each client."""

    exchange: Exchange[Nothing, ImagesUpdate]
    clustering: ServerClustering
    image_shape: tuple[int, ...]
    kept: int = 0

    def broadcast(self, state: PooledState) -> Nothing:
        """Return an empty message."""
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        """Return an update's shapes and dtypes: any number of images of the run's shape."""
        dtype = torch.uint8 if len(self.image_shape) > 1 else torch.float64
        images = Spec(dtype, (Rows(_MOST_IMAGES), *self.image_shape))
        return {"client": Spec(torch.int64), "images": images}

    def check(self, message: Nothing, update: ImagesUpdate, senders: Sequence[Member]) -> None:
        """Refuse an update that carries another client's number."""
        if [update.client] != [sender.id for sender in senders]:
            raise RefusedUpdateError(f"it claims to be of client {update.client}")

    def aggregate(
        self, state: PooledState, updates: Iterable[ImagesUpdate], randomness: Randomness
    ) -> tuple[PooledState, Metrics]:
        """Cluster the images of all clients together, and store some of them if configured."""
        received = list(updates)
        pooled = torch.cat([update.images for update in received])
        clustered, metrics = self.clustering.fit(pooled, randomness)
        if self.kept:
            kept = {str(update.client): update.images[: self.kept].clone() for update in received}
            clustered = replace(clustered, images=kept)
        return clustered, metrics


class PooledClustering(ClusteringAlgorithm[PooledState]):
    """Centralised baselines: clients send their own images, in a single round."""

    state_type = PooledState
    rounds = 1

    def __init__(self, problem: Problem, clustering: Callable[[Problem], ServerClustering]) -> None:
        self.problem = problem
        self.clustering = clustering(problem)
        self.by_angle = self.clustering.by_angle

    def initial_state(self, randomness: Randomness) -> PooledState:
        """Return a state without centroids."""
        return PooledState()

    def exchanges(self, number: int, state: PooledState) -> Sequence[ClusterImages | MeanGANLosses]:
        """Return the only exchange, in which clients send their images."""
        return [ClusterImages(OWN_IMAGES, self.clustering, self.problem.image_shape)]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side: sending images."""
        return ClientSide.of(EachClient(OWN_IMAGES, send_own))

    def assign(self, state: PooledState, client: Client) -> Tensor:
        """Return the cluster of each of a client's images, int64 of shape (samples,)."""
        return self.clustering.assign(state, client.images)

    def represent(self, state: PooledState, client: Client) -> Tensor | None:
        """Return a client's images as points (samples, dimensions); None without centroids."""
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
    """SDA-FC and PPFC-GAN: clients train GANs, then send synthetic images in the last round.

    Each round is an epoch of the GANs.

    Raises:
        UsageError: The images do not fit the clients' networks.
    """

    def __init__(self, problem: Problem, clustering: Callable[[Problem], ServerClustering]) -> None:
        super().__init__(problem, clustering)
        self.gan = problem.config.section(GANConfig)
        self.rounds = self.gan.epochs
        # Raises the error before the run starts.
        with torch.device("meta"):
            for make in network_makers(self.gan, problem.image_shape, problem.clusters):
                make()

    def exchanges(self, number: int, state: PooledState) -> Sequence[ClusterImages | MeanGANLosses]:
        """Return the exchanges of a round: an epoch of the GANs; in the last round, images, too."""
        works: list[ClusterImages | MeanGANLosses] = [MeanGANLosses()]
        if number == self.rounds - 1:
            kept = _SHEET_ROWS * self.problem.clusters
            shape = self.problem.image_shape
            works.append(ClusterImages(SYNTHETIC_IMAGES, self.clustering, shape, kept))
        return works

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side: training GANs, and drawing images."""
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
            threaded(
                [EachClient(SYNTHETIC_IMAGES, partial(send_synthetic, own[0])) for own in threads]
            ),
            cohort=cohort.clients,
        )

    def pictures(self, state: PooledState) -> Mapping[str, Tensor]:
        """Return one picture for each client: its synthetic images, with a column for each code."""
        return {
            f"synthetic-client-{number}": contact_sheet(images, self.problem.clusters)
            for number, images in (state.images or {}).items()
        }
