"""The deep clustering network (DCN) with which PPFC-GAN's server clusters synthetic images.

Source: Yang, Fu, Sidiropoulos and Hong, *Towards K-means-friendly Spaces: Simultaneous Deep
Learning and Clustering* (ICML 2017), "the paper" below. An autoencoder is trained to reconstruct
images and to move their latents towards centroids, which are updated alternately.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.config import KMeansConfig
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.systems.synthetic.config import DCNConfig
from ccfcpp.clustering.systems.synthetic.networks import Autoencoder
from ccfcpp.core.config import PrecisionConfig
from ccfcpp.core.errors import FederationError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.state import ModelState, build
from ccfcpp.models.steps import batch_lengths


@dataclass(frozen=True)
class DeepClusters:
    """Result of deep clustering.

    Attributes:
        model: Weights of the autoencoder: encoder f and decoder g.
        centroids: float32 of shape (at most k, latent). An image belongs to the centroid nearest to
            its latent.
        figures: Metrics of the last epoch: ``reconstruction`` and ``clustering``, the means over
            samples of the terms of ``deep_clustering_loss`` without weights. A term that no epoch
            trained is missing.
    """

    model: ModelState
    centroids: Tensor
    figures: dict[str, float]


def rowwise_squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return ‖a − b‖² for each pair of rows of two tensors of shape (batch, d), (batch,)."""
    return (first - second).square().sum(dim=1)


def deep_clustering_loss(reconstruction: Tensor, clustering: Tensor, weight: float) -> Tensor:
    """Return the DCN's loss ‖g(f(x)) − x‖² + (λ/2)‖f(x) − Ms‖², averaged over the batch.

    f is the encoder, g the decoder, and Ms the centroid of the sample x.

    Args:
        reconstruction: ‖g(f(x)) − x‖² of each sample, of shape (batch,).
        clustering: ‖f(x) − Ms‖² of each sample, of the same shape.
        weight: Weight λ of the second term.

    Returns:
        A scalar.
    """
    return (reconstruction + weight / 2 * clustering).mean()


def move_centroids(
    centroids: Tensor, counts: Tensor, latents: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Update centroids with the samples of a batch, as the paper does one sample after another.

    The paper's update for a sample with latent h and label k is c_k ← c_k + 1 and then
    m_k ← m_k − (m_k − h)/c_k. n samples of a cluster together move m to m + Σ(h − m)/(c + n).

    Args:
        centroids: Centroids m, of shape (k, latent).
        counts: Numbers c of samples so far, float64 of shape (k,), positive.
        latents: Latents h of the batch, of shape (batch, latent).
        labels: Cluster of each sample, int64 of shape (batch,).

    Returns:
        The new centroids and counts. A cluster without samples keeps both.
    """
    # On a GPU, a matrix product is deterministic; index_add sums in random order.
    members = F.one_hot(labels, len(centroids)).to(latents.dtype)
    pulls = members.T @ (latents - centroids[labels])
    counts = counts + members.sum(dim=0)
    return centroids + pulls / counts.to(pulls.dtype).unsqueeze(1), counts


@dataclass
class _MovingClusters:
    """Centroids with sample counts, and labels of all samples, while the network is trained."""

    centroids: Tensor
    labels: Tensor
    counts: Tensor

    def follow(self, batch: Tensor, latents: Tensor) -> None:
        """Assign a batch (indices of samples) to its nearest centroids, and update these."""
        labels = nearest(latents, self.centroids)
        self.labels[batch] = labels
        self.centroids, self.counts = move_centroids(self.centroids, self.counts, latents, labels)


class DeepClustering:
    """Deep clustering: ``fit`` trains an autoencoder and centroids, ``encode`` computes latents."""

    def __init__(self, problem: Problem) -> None:
        self.config = problem.config.section(DCNConfig)
        self.kmeans = problem.config.section(KMeansConfig)
        self.image_shape = problem.image_shape
        self.clusters = problem.clusters
        self.device = problem.device
        self.precision = problem.config.section(PrecisionConfig).precision
        # ``encode`` needs no decoder.
        self._encoder = self._flat_network(self._make_encoder, trained=False)

    def _flat_network(self, make: Callable[[], nn.Module], trained: bool) -> FlatNetwork:
        return FlatNetwork(make, self.device, trained=trained, precision=self.precision)

    def make_model(self) -> Autoencoder:
        """Build the autoencoder whose weights ``fit`` returns."""
        return Autoencoder(self.image_shape, self.config.widths, self.config.latent)

    def _make_encoder(self) -> nn.Module:
        # Submodule names as in the autoencoder, so that its weights can be loaded.
        return nn.Sequential(OrderedDict(encoder=self.make_model().encoder))

    def fit(self, images: Tensor, randomness: Randomness) -> DeepClusters:
        """Pre-train the autoencoder, run k-means on its latents, then train both alternately.

        Args:
            images: uint8 of shape (images, channels, height, width).
            randomness: Source of random numbers.

        Returns:
            The weights, and k centroids, or fewer if there are fewer distinct images.

        Raises:
            ValueError: There is no image.
            FederationError: The training diverged.
        """
        if len(images) == 0:
            raise ValueError("deep clustering needs at least one image")
        images, network = images.to(self.device), self._flat_network(self.make_model, trained=True)
        initial = build(self.make_model, randomness.generator("deep clustering: model"))
        network.load(initial.state_dict())
        # Adam keeps its moments from pre-training.
        optimizer = FlatAdam(network)
        optimizer.begin(self.config.learning_rate)
        train = partial(self._train_epoch, network, optimizer, images)
        metrics: dict[str, float] = {}
        for epoch in range(self.config.pretrain_epochs):
            metrics = train(self._batches(len(images), randomness, epoch), None)
        clusters = self._first_clusters(network.state(), images, randomness)
        for epoch in range(self.config.epochs):
            batches = self._batches(len(images), randomness, self.config.pretrain_epochs + epoch)
            metrics = train(batches, clusters)
        return DeepClusters(network.state(), clusters.centroids.float(), metrics)

    def encode(self, model: ModelState, images: Tensor) -> Tensor:
        """Return the latents of uint8 images, of shape (samples, latent).

        Args:
            model: Weights of the autoencoder; those of its encoder are enough.
            images: uint8 of shape (samples, channels, height, width).
        """
        self._encoder.load(model)
        size = forward_batch(math.prod(self.image_shape))
        return torch.cat([self._latents(to_float(chunk)) for chunk in torch.split(images, size)])

    @torch.no_grad()
    def _latents(self, shown: Tensor) -> Tensor:
        """Return the latents of float images, by the weights that the encoder has now."""
        (latents,) = self._encoder(shown)
        return latents

    def _batches(
        self, samples: int, randomness: Randomness, epoch: int, least: int = 0
    ) -> Sequence[Tensor]:
        """Return batches of shuffled indices of all samples; the last batch may be smaller."""
        generator = randomness.generator(f"deep clustering: batches {epoch}")
        order = torch.randperm(samples, generator=generator).to(self.device)
        return torch.split(order, batch_lengths(samples, self.config.batch_size, least))

    def _first_clusters(
        self, model: ModelState, images: Tensor, randomness: Randomness
    ) -> _MovingClusters:
        """Return initial clusters, by k-means on the latents of all images."""
        with section("deep clustering: k-means"):
            latents = self.encode(model, images)
            self._check_finite(latents)
            clustering = kmeans(
                latents,
                self.clusters,
                seed=randomness.integer("deep clustering: k-means"),
                restarts=self.kmeans.restarts,
                iterations=self.kmeans.iterations,
            )
            centroids = clustering.centroids.to(latents.dtype)
            # float64, since float32 cannot count beyond 2²⁴.
            counts = centroids.new_full(
                (len(centroids),), self.config.initial_count, dtype=torch.float64
            )
            return _MovingClusters(centroids, nearest(latents, centroids), counts)

    def _train_epoch(
        self,
        network: FlatNetwork,
        optimizer: FlatAdam,
        images: Tensor,
        batches: Sequence[Tensor],
        clusters: _MovingClusters | None,
    ) -> dict[str, float]:
        """Train for an epoch, with the k-means term if clusters are given; return the metrics."""
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        for batch in batches:
            shown = to_float(images[batch])
            own = None if clusters is None else clusters.centroids[clusters.labels[batch]]
            totals += self._step(network, optimizer, shown, own)
            if clusters is not None:
                with section("deep clustering: centroids"):
                    self._encoder.load(network.state())
                    clusters.follow(batch, self._latents(shown))
        self._check_finite(totals, network.weights)
        reconstruction, clustering = (totals / len(images)).tolist()
        if clusters is None:
            return {"reconstruction": reconstruction}
        self._check_finite(clusters.centroids)
        return {"reconstruction": reconstruction, "clustering": clustering}

    def _step(
        self, network: FlatNetwork, optimizer: FlatAdam, shown: Tensor, own: Tensor | None
    ) -> Tensor:
        """Train for one step; return the sums of ‖g(f(x)) − x‖² and ‖f(x) − Ms‖², of shape (2,)."""
        with section("deep clustering: forward"):
            latents, reconstructed = network(shown)
            reconstruction = rowwise_squared_distances(reconstructed, shown.flatten(1))
            if own is None:
                clustering = torch.zeros_like(reconstruction)
            else:
                clustering = rowwise_squared_distances(latents, own)
            loss = deep_clustering_loss(reconstruction, clustering, self.config.weight)
        with section("deep clustering: backward"):
            network.backward(loss)
        with section("deep clustering: optimizer"):
            optimizer.step()
        return torch.stack([reconstruction.detach().sum(), clustering.detach().sum()])

    def _check_finite(self, *tensors: Tensor) -> None:
        """Raise a ``FederationError`` if a tensor has NaN or infinite elements."""
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise FederationError(
                f"dcn.learning_rate = {self.config.learning_rate:g} made the deep clustering "
                "network diverge: give a lower one"
            )
