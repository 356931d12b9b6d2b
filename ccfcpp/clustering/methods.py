"""The systems of federated clustering, by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from ccfcpp.clustering.ccfc.algorithm import CCFC
from ccfcpp.clustering.setup import cohort_size, model_maker
from ccfcpp.clustering.shallow.ffcm import (
    FFCM,
    Combination,
    clustered_centroids,
    support_weighted_mean,
)
from ccfcpp.clustering.shallow.k_fed import KFed, OneShotCentroids
from ccfcpp.clustering.shallow.pixels import PixelRule
from ccfcpp.clustering.synthetic.deep_clustering import DeepClustering
from ccfcpp.clustering.synthetic.gan_training import GANTrainer, gan_training_bytes
from ccfcpp.clustering.synthetic.pooled import (
    LatentKMeans,
    PixelFuzzyCMeans,
    PixelKMeans,
    PooledClustering,
    Pooling,
    ServerClustering,
)
from ccfcpp.core.config import ClusterConfig, MethodName
from ccfcpp.core.errors import UsageError
from ccfcpp.engine.algorithm import Algorithm, State
from ccfcpp.engine.client import Client
from ccfcpp.models.stack.stacked import training_bytes


class ClusteringAlgorithm(Algorithm[State], Protocol[State]):
    """An algorithm that clusters images; its state has ``centroids``, None where none are known."""

    def assign(self, state: State, holder: Client) -> Tensor:
        """The cluster of each image of a holder, int64 of shape (samples,).

        Raises:
            FederationError: The state has no centroids.
        """
        ...

    @property
    def by_angle(self) -> bool:
        """Whether images belong to the centroid of the nearest direction; else to the nearest."""
        ...

    def represent(self, state: State, holder: Client) -> Tensor:
        """A holder's images as points in the centroids' space, of shape (samples, dimensions).

        The state is one in which centroids are known, or one with a model.
        """
        ...

    def delivery(self, state: State) -> object:
        """What clients receive in the end, to assign their images: a dataclass of tensors."""
        ...

    def describe(self) -> dict[str, object]:
        """What a summary says of the system, beside the configuration."""
        ...


@dataclass(frozen=True)
class Setting:
    """What an algorithm is made for.

    Attributes:
        config: The run's configuration.
        image_shape: Channels, height and width of an image.
        clusters: Number of clusters k.
        largest: Images of the largest client.
        together: How many clients take part in a round.
        device: Where the computation runs.
    """

    config: ClusterConfig
    image_shape: tuple[int, ...]
    clusters: int
    largest: int
    together: int
    device: torch.device

    @property
    def pixels(self) -> PixelRule:
        """How images become points."""
        return PixelRule(self.config.pixels, self.image_shape)

    def cohort(self, bytes_of_one: int) -> int:
        """How many clients are trained side by side."""
        return cohort_size(self.config.compute.cohort, self.together, bytes_of_one, self.device)


@dataclass(frozen=True)
class Method:
    """A system.

    Attributes:
        title: Its name in the tables of the CCFC++ paper.
        sends: What leaves a client.
        sections: The parts of the configuration that it heeds, beside those of every run.
        make: Makes the algorithm.
        centralised: Whether the division among clients means nothing to it.
    """

    title: str
    sends: str
    sections: frozenset[str]
    make: Callable[[Setting], ClusteringAlgorithm[Any]]
    centralised: bool = False


def _ccfc(setting: Setting) -> CCFC:
    config = setting.config
    make_model = model_maker(config.model, setting.image_shape)
    batch = min(config.training.batch_size, setting.largest)
    views = 2 if config.training.pretrain_rounds else 1
    cohort = setting.cohort(training_bytes(make_model, setting.image_shape, batch, views))
    return CCFC(config, make_model, setting.clusters, cohort, setting.device)


def _k_fed(setting: Setting) -> KFed:
    local_clusters = setting.config.kfed.local_clusters or setting.clusters
    if local_clusters > setting.clusters:
        raise UsageError(
            f"kfed.local_clusters = {local_clusters} is more than the {setting.clusters} clusters: "
            f"give at most {setting.clusters}"
        )
    iterations = setting.config.centroids.iterations
    return KFed(OneShotCentroids(setting.pixels, setting.clusters, local_clusters, iterations))


def _ffcm(combine: Combination, setting: Setting) -> FFCM:
    return FFCM(setting.config, setting.pixels, setting.clusters, combine, setting.device)


def _pixel_k_means(setting: Setting) -> PixelKMeans:
    return PixelKMeans(setting.pixels, setting.clusters, setting.config.centroids)


def _pixel_fuzzy_c_means(setting: Setting) -> PixelFuzzyCMeans:
    return PixelFuzzyCMeans(setting.pixels, setting.clusters, setting.config.fuzzy)


def _latent_k_means(setting: Setting) -> LatentKMeans:
    config = setting.config
    return LatentKMeans(
        DeepClustering(
            config.dcn,
            setting.image_shape,
            setting.clusters,
            config.centroids.restarts,
            config.centroids.iterations,
            setting.device,
            config.compute.precision,
        )
    )


Clusterer = Callable[[Setting], ServerClustering]


def _pooled(clusterer: Clusterer, setting: Setting) -> PooledClustering:
    pooling = Pooling(clusterer(setting), setting.image_shape, setting.clusters, trainer=None)
    return PooledClustering(pooling)


def _synthetic(clusterer: Clusterer, setting: Setting) -> PooledClustering:
    config, shape, codes = setting.config, setting.image_shape, setting.clusters
    cohort = setting.cohort(gan_training_bytes(config.gan, shape, codes, setting.largest))
    precision = config.compute.precision
    trainer = GANTrainer(config.gan, shape, codes, cohort, setting.device, precision)
    return PooledClustering(Pooling(clusterer(setting), shape, codes, trainer), config.gan.epochs)


_CENTROIDS = frozenset({"pixels", "centroids"})
_FUZZY = frozenset({"pixels", "fuzzy"})
_CONTRASTIVE = frozenset({"model", "training", "loss", "centroids", "views"})

METHODS: dict[MethodName, Method] = {
    "km": Method("KM", "images", _CENTROIDS, partial(_pooled, _pixel_k_means), centralised=True),
    "fcm": Method(
        "FCM", "images", _FUZZY, partial(_pooled, _pixel_fuzzy_c_means), centralised=True
    ),
    "k-fed": Method("k-FED", "centroids", _CENTROIDS | {"kfed"}, _k_fed),
    "ffcm-avg": Method(
        "FFCM-avg", "centroids, supports", _FUZZY | {"ffcm"}, partial(_ffcm, support_weighted_mean)
    ),
    "ffcm-km": Method(
        "FFCM-km", "centroids, supports", _FUZZY | {"ffcm"}, partial(_ffcm, clustered_centroids)
    ),
    "sda-fc-km": Method(
        "SDA-FC-KM", "synthetic images", _CENTROIDS | {"gan"}, partial(_synthetic, _pixel_k_means)
    ),
    "sda-fc-fcm": Method(
        "SDA-FC-FCM",
        "synthetic images",
        _FUZZY | {"gan"},
        partial(_synthetic, _pixel_fuzzy_c_means),
    ),
    "ppfc-gan": Method(
        "PPFC-GAN",
        "synthetic images",
        frozenset({"gan", "dcn", "centroids"}),
        partial(_synthetic, _latent_k_means),
    ),
    "ccfc": Method("CCFC", "model, centroids", _CONTRASTIVE, _ccfc),
    "ccfc++": Method("CCFC++", "model, centroids", _CONTRASTIVE, _ccfc),
}
"""All of them, in the order of the tables."""


def refuse_unused(keys: Sequence[str], methods: Sequence[MethodName]) -> None:
    """Refuse settings that no system of a run heeds.

    Args:
        keys: Dotted keys that the user gave.
        methods: The systems.

    Raises:
        UsageError: One of the keys has no effect.
    """
    special = frozenset().union(*(method.sections for method in METHODS.values()))
    heeded = frozenset().union(*(METHODS[name].sections for name in methods))
    for key in keys:
        part = key.partition(".")[0]
        if part in special - heeded:
            users = [name for name, method in METHODS.items() if part in method.sections]
            raise UsageError(
                f"{key} has no effect on {', '.join(methods)}: leave it out, or take one of "
                f"{', '.join(users)}"
            )
