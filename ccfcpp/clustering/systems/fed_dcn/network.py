"""Training of FedDCN's autoencoder, and the synthetic samples that the clients' decoders draw."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.centroids import CentroidUpdate
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.clustering.systems.synthetic.deep_clustering import DeepClustering
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import to_float
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.state import ModelState

Pulls = tuple[Tensor | None, Tensor | None]
"""What latents are drawn to: centroids (k, latent), and a target of each (samples, latent)."""


@dataclass(frozen=True)
class LocalClusters(CentroidUpdate):
    """A client's decoder, and its clusters of latents; sizes count what is near the centroids."""

    decoder: ModelState
    deviations: Tensor


def fed_dcn_loss(config: FedDCNConfig, x: Tensor, outputs: Sequence[Tensor], to: Pulls) -> Tensor:
    """Return mse(g(f(x)), x) + γ mse(f(x), u) + β mean ‖f(x) − m‖², as in the public code.

    An ``mse`` is a mean over samples and dimensions, γ is ``geometry``, and β is ``clustering``.
    ``outputs`` are f(x), of shape (batch, latent), and g(f(x)), as x (batch, pixels); ``to``
    are centroids, of which m is the nearest, and targets u; without one, its term is left out.
    """
    (latents, shown), (centroids, targets) = outputs, to
    loss = F.mse_loss(shown, x)
    if targets is not None:
        loss = loss + config.geometry * F.mse_loss(latents, targets)
    if centroids is not None:
        own = centroids[nearest(latents.detach(), centroids)]
        loss = loss + config.clustering * (latents - own).square().sum(dim=1).mean()
    return loss


class Trainer(DeepClustering):
    """Trainer of FedDCN's autoencoder, which is that of ``DeepClustering``, from given weights."""

    config: FedDCNConfig

    def descend(
        self, start: ModelState, samples: Tensor, epochs: int, source: Randomness, to: Pulls
    ) -> tuple[ModelState, float]:
        """Train for some epochs by ``fed_dcn_loss``; return the weights and the last loss."""
        network, loss = self._flat_network(self.make_model, trained=True), torch.zeros(())
        network.load(start)
        optimizer = FlatAdam(network)
        optimizer.begin(self.config.learning_rate)
        for epoch in range(epochs):
            for batch in self._batches(len(samples), source, epoch):
                points, (centroids, targets) = to_float(samples[batch]).flatten(1), to
                pulls = centroids, None if targets is None else targets[batch]
                loss = fed_dcn_loss(self.config, points, network(points), pulls)
                network.backward(loss)
                optimizer.step()
        self._check_finite(network.weights)
        return network.state(), float(loss.detach())

    def find(
        self, model: ModelState, samples: Tensor, source: Randomness, start: Tensor | None = None
    ) -> Tensor:
        """Run k-means on latents, from centroids or at random; return (at most k, latent)."""
        k, latents = self.clusters if start is None else len(start), self.encode(model, samples)
        return kmeans(latents, k, seed=source.integer("k-means"), init=start).centroids.float()

    def train(
        self, start: ModelState, samples: Tensor, source: Randomness, targets: Tensor | None = None
    ) -> tuple[ModelState, Tensor]:
        """Train without, then with the term of k-means; return the weights and the centroids."""
        model, _ = self.descend(
            start, samples, self.config.pretrain_epochs, source, (None, targets)
        )
        centroids = self.find(model, samples, source)
        model, _ = self.descend(model, samples, self.config.epochs, source, (centroids, targets))
        return model, self.find(model, samples, source, centroids)

    def describe(self, model: ModelState, samples: Tensor, centroids: Tensor) -> LocalClusters:
        """Describe clusters as the public code does; the size is 1 at least.

        A deviation is that of distances from the centroid, or 1 of one; sizes count those up to it.
        """
        latents = self.encode(model, samples)
        labels = nearest(latents, centroids)
        distances = (latents - centroids[labels]).norm(dim=1)
        own = [distances[labels == cluster] for cluster in range(len(centroids))]
        deviations = torch.stack([d.std() if len(d) > 1 else d.new_ones(()) for d in own])
        sizes = torch.stack([(d <= s).sum() for d, s in zip(own, deviations, strict=True)])
        sizes = sizes.clamp(min=1).double()
        return LocalClusters(centroids, sizes, part_of(model, "decoder"), deviations.float())

    @torch.no_grad()
    def draw(self, clients: Sequence[LocalClusters], generator: torch.Generator) -> Tensor:
        """Draw latents from N(centroid, deviation²) in proportion to sizes, and decode them."""
        drawn, ends = [], torch.cat([own.sizes for own in clients]).cpu().cumsum(0)
        ends = (ends / ends[-1] * self.config.synthetic).round().long()
        numbers = ends.diff(prepend=ends.new_zeros(1))
        for own in clients:
            shares, numbers = numbers[: len(own.sizes)], numbers[len(own.sizes) :]
            rows = torch.arange(len(shares)).repeat_interleave(shares)
            noise = torch.randn(len(rows), self.config.latent, generator=generator)
            latents = own.centroids[rows] + own.deviations[rows, None] * noise.to(own.centroids)
            network = self._flat_network(lambda: self.make_model().decoder, trained=False)
            network.load({n.removeprefix("decoder."): entry for n, entry in own.decoder.items()})
            drawn.append(network(latents.to(network.weights))[0])
        points = torch.cat(drawn).nan_to_num().view(-1, *self.image_shape)
        return points if len(self.image_shape) == 1 else (points.clamp(0, 1) * 255).round().byte()


def part_of(model: ModelState, name: str) -> ModelState:
    """Return the weights of an autoencoder's ``encoder`` or ``decoder``."""
    return {entry: tensor for entry, tensor in model.items() if entry.startswith(f"{name}.")}


def embed(samples: Tensor, dimensions: int, seed: int) -> Tensor:
    """Embed images or vectors by UMAP, as the paper does: floats of shape (samples, dimensions)."""
    from umap import UMAP  # Imported here: it is an extra, and takes seconds.

    umap = UMAP(15, dimensions, min_dist=0.1, random_state=seed % 2**32, n_jobs=1)
    found = umap.fit_transform(to_float(samples).flatten(1).cpu().numpy())
    return torch.from_numpy(found).to(samples.device)
