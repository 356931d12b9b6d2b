"""The deep clustering network (DCN), by which PPFC-GAN's server clusters synthetic images.

Source: Yang, Fu, Sidiropoulos and Hong, *Towards K-means-friendly Spaces: Simultaneous Deep
Learning and Clustering* (ICML 2017), "the paper" below. An autoencoder learns to reconstruct the
images and to bring their latents close to centroids, while the centroids follow the latents.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.config import KMeansConfig
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.systems.synthetic.config import DCNConfig
from ccfcpp.clustering.systems.synthetic.networks import Autoencoder, FlatEncoder
from ccfcpp.core.config import PrecisionConfig
from ccfcpp.core.errors import FederationError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import forward_batch, to_float
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.state import ModelState, build


@dataclass(frozen=True)
class DeepClusters:
    """Result of deep clustering.

    Attributes:
        model: Weights of the autoencoder, that is of encoder and decoder.
        centroids: float32 of shape (found, latent), with 1 ≤ found ≤ k. An image belongs to the
            centroid nearest to its latent.
        figures: Metrics ``reconstruction`` and ``clustering``, the means over the samples of the
            last epoch of ‖g(f(x)) − x‖² and ‖f(x) − Ms‖², without their weights in the loss. A
            term that no epoch trained is missing.
    """

    model: ModelState
    centroids: Tensor
    figures: dict[str, float]


def rowwise_squared_distances(first: Tensor, second: Tensor) -> Tensor:
    """Return the squared distance ‖a − b‖² of each row: two tensors (batch, d) to (batch,)."""
    return (first - second).square().sum(dim=1)


def deep_clustering_loss(reconstruction: Tensor, clustering: Tensor, weight: float) -> Tensor:
    """Return the paper's loss ‖g(f(x)) − x‖² + (λ/2)‖f(x) − Ms‖², averaged over the batch.

    Args:
        reconstruction: ‖g(f(x)) − x‖² of each sample, of shape (batch,).
        clustering: ‖f(x) − Ms‖² of each sample, of the same shape.
        weight: λ, the weight of the second loss term.

    Returns:
        A scalar.
    """
    return (reconstruction + weight / 2 * clustering).mean()


def move_centroids(
    centroids: Tensor, counts: Tensor, latents: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the paper's centroid updates of a batch, sample after sample, in closed form.

    For each sample with latent h and label k, c_k ← c_k + 1 and m_k ← m_k − (m_k − h)/c_k. Each
    update adds h to c_k·m_k, so n samples of a cluster lead from m and c to
    (c·m + Σh)/(c + n) = m + Σ(h − m)/(c + n), whatever their order.

    Args:
        centroids: m of shape (k, latent).
        counts: c, float64 of shape (k,), positive.
        latents: h of shape (batch, latent).
        labels: int64 of shape (batch,).

    Returns:
        The new centroids and counts. A cluster without samples keeps both.
    """
    # A product is deterministic; index_add sums in random order on an accelerator.
    members = F.one_hot(labels, len(centroids)).to(latents.dtype)
    pulls = members.T @ (latents - centroids[labels])
    counts = counts + members.sum(dim=0)
    return centroids + pulls / counts.to(pulls.dtype).unsqueeze(1), counts


@dataclass
class _MovingClusters:
    """Centroids and assignments during the training of the network."""

    centroids: Tensor
    labels: Tensor
    counts: Tensor

    def follow(self, batch: Tensor, latents: Tensor) -> None:
        """Assign the samples of a batch to their nearest centroids, and move these."""
        labels = nearest(latents, self.centroids)
        self.labels[batch] = labels
        self.centroids, self.counts = move_centroids(self.centroids, self.counts, latents, labels)


class DeepClustering:
    """A deep clustering network and its training.

    It keeps nothing from one ``fit`` to the next. Only ``fit`` makes the whole network; ``encode``
    uses the encoder alone.
    """

    def __init__(self, problem: Problem) -> None:
        self.config = problem.config.section(DCNConfig)
        self.kmeans = problem.config.section(KMeansConfig)
        self.image_shape = problem.image_shape
        self.clusters = problem.clusters
        self.device = problem.device
        self.precision = problem.config.section(PrecisionConfig).precision
        # Latents are computed far more often than reconstructions.
        self._encoder = self._placed(self._make_encoder, trained=False)

    def _placed(self, make: Callable[[], nn.Module], trained: bool) -> FlatNetwork:
        return FlatNetwork(make, self.device, trained=trained, precision=self.precision)

    def make_model(self) -> Autoencoder:
        """Make the autoencoder whose weights ``fit`` returns."""
        return Autoencoder(self.image_shape, self.config.widths, self.config.latent)

    def _make_encoder(self) -> nn.Module:
        # The name is that in the autoencoder, so that its weights can be loaded.
        encoder = FlatEncoder(self.image_shape, self.config.widths, self.config.latent)
        return nn.Sequential(OrderedDict(encoder=encoder))

    def fit(self, images: Tensor, randomness: Randomness) -> DeepClusters:
        """Pre-train the autoencoder, cluster its latents, then train both alternately.

        Adam keeps its moments through both phases.

        Returns:
            The network and at most ``clusters`` centroids; there are fewer if there are fewer
            distinct images.

        Raises:
            ValueError: There is no image.
            FederationError: The training diverged.
        """
        if len(images) == 0:
            raise ValueError("deep clustering needs at least one image")
        self._network = self._placed(self.make_model, trained=True)
        try:
            return self._trained(images.to(self.device), randomness)
        finally:
            del self._network

    def _trained(self, images: Tensor, randomness: Randomness) -> DeepClusters:
        initial = build(self.make_model, randomness.generator("deep clustering: model"))
        self._network.load(initial.state_dict())
        optimizer = FlatAdam(self._network)
        optimizer.begin(self.config.learning_rate)
        figures: dict[str, float] = {}
        for epoch in range(self.config.pretrain_epochs):
            batches = self._batches(len(images), randomness, epoch)
            figures = self._train_epoch(images, batches, optimizer, None)
        clusters = self._first_clusters(images, randomness)
        for epoch in range(self.config.epochs):
            batches = self._batches(len(images), randomness, self.config.pretrain_epochs + epoch)
            figures = self._train_epoch(images, batches, optimizer, clusters)
        return DeepClusters(self._network.state(), clusters.centroids.float(), figures)

    def encode(self, model: ModelState, images: Tensor) -> Tensor:
        """Compute the latents of images in chunks.

        Returns:
            Floats of shape (samples, latent).
        """
        self._encoder.load(model)
        size = forward_batch(math.prod(self.image_shape))
        return torch.cat([self._latents(to_float(chunk)) for chunk in torch.split(images, size)])

    @torch.no_grad()
    def _latents(self, shown: Tensor) -> Tensor:
        """Compute the latents of float images by the encoder's current weights."""
        (latents,) = self._encoder(shown)
        return latents

    def _batches(self, samples: int, randomness: Randomness, epoch: int) -> Sequence[Tensor]:
        """Shuffle the indices of all samples into batches; the last one may be shorter."""
        generator = randomness.generator(f"deep clustering: batches {epoch}")
        order = torch.randperm(samples, generator=generator).to(self.device)
        return torch.split(order, self.config.batch_size)

    def _first_clusters(self, images: Tensor, randomness: Randomness) -> _MovingClusters:
        """Run k-means on the latents of all images."""
        with section("deep clustering: k-means"):
            latents = self.encode(self._network.state(), images)
            self._check_finite(latents)
            found = kmeans(
                latents,
                self.clusters,
                seed=randomness.integer("deep clustering: k-means"),
                restarts=self.kmeans.restarts,
                iterations=self.kmeans.iterations,
            )
            centroids = found.centroids.to(latents.dtype)
            # float64, since float32 cannot count beyond 2²⁴.
            counts = centroids.new_full(
                (len(centroids),), self.config.initial_count, dtype=torch.float64
            )
            return _MovingClusters(centroids, nearest(latents, centroids), counts)

    def _train_epoch(
        self,
        images: Tensor,
        batches: Sequence[Tensor],
        optimizer: FlatAdam,
        clusters: _MovingClusters | None,
    ) -> dict[str, float]:
        """Train an epoch on the reconstruction alone, or together with the clusters."""
        totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        for batch in batches:
            shown = to_float(images[batch])
            own = None if clusters is None else clusters.centroids[clusters.labels[batch]]
            totals += self._step(shown, own, optimizer)
            if clusters is not None:
                with section("deep clustering: centroids"):
                    self._encoder.load(self._network.state())
                    clusters.follow(batch, self._latents(shown))
        self._check_finite(totals, self._network.weights)
        reconstruction, clustering = (totals / len(images)).tolist()
        if clusters is None:
            return {"reconstruction": reconstruction}
        self._check_finite(clusters.centroids)
        return {"reconstruction": reconstruction, "clustering": clustering}

    def _step(self, shown: Tensor, own: Tensor | None, optimizer: FlatAdam) -> Tensor:
        """Train the network for one step, and return both sums of squared distances."""
        with section("deep clustering: forward"):
            latents, reconstructed = self._network(shown)
            reconstruction = rowwise_squared_distances(reconstructed, shown.flatten(1))
            if own is None:
                clustering = torch.zeros_like(reconstruction)
            else:
                clustering = rowwise_squared_distances(latents, own)
            loss = deep_clustering_loss(reconstruction, clustering, self.config.weight)
        with section("deep clustering: backward"):
            self._network.backward(loss)
        with section("deep clustering: optimizer"):
            optimizer.step()
        return torch.stack([reconstruction.detach().sum(), clustering.detach().sum()])

    def _check_finite(self, *tensors: Tensor) -> None:
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
            raise FederationError(
                f"dcn.learning_rate = {self.config.learning_rate:g} made the deep clustering "
                "network diverge: give a lower one"
            )
