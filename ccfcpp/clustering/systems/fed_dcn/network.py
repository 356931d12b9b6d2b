"""Training of FedDCN's autoencoder, and the synthetic samples that the clients' decoders draw."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Decoder
from ccfcpp.clustering.kmeans.centroids import CentroidUpdate
from ccfcpp.clustering.kmeans.server import kmeans, nearest
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.clustering.systems.synthetic.deep_clustering import DeepClustering
from ccfcpp.clustering.systems.synthetic.networks import Autoencoder
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import to_float
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.state import ModelState

_ONE_AT_A_TIME = Lock()
"""Held while UMAP runs, whose own threads do not bear several callers."""
Maybe = Tensor | None
Pulls = tuple[Maybe, Maybe]
"""Aims of latents: centroids of shape (k, latent), and a target of each, (samples, latent)."""


@dataclass(frozen=True)
class LocalClusters(CentroidUpdate):
    """A client's decoder, and its clusters of latents with their sizes and deviations."""

    decoder: ModelState
    deviations: Tensor


def fed_dcn_loss(config: FedDCNConfig, x: Tensor, outputs: Sequence[Tensor], to: Pulls) -> Tensor:
    """Return mse(g(f(x)), x) + γ mse(f(x), u) + β mean ‖f(x) − m‖², as in the public code.

    γ is ``geometry``, β ``clustering``, and ``outputs`` f(x), (batch, latent), and g(f(x)), (batch,
    pixels). ``to`` has centroids, of which m is the nearest, and targets u; None: without its term.
    Samples whose target is NaN are without that term.
    """
    (latents, shown), (centroids, targets) = outputs, to
    loss = F.mse_loss(shown, x)
    if targets is not None and bool((aimed := ~targets[:, 0].isnan()).any()):
        loss = loss + config.geometry * F.mse_loss(latents[aimed], targets[aimed])
    if centroids is not None:
        own = centroids[nearest(latents.detach(), centroids)]
        loss = loss + config.clustering * (latents - own).square().sum(dim=1).mean()
    return loss


class Trainer(DeepClustering):
    """Trainer of FedDCN's autoencoder, which is that of ``DeepClustering``, from given weights."""

    config: FedDCNConfig

    def make_model(self) -> Autoencoder:
        """Build the autoencoder, with BatchNorm and a sigmoid at pixels as in the public code."""
        model, widths = super().make_model(), self.config.widths
        for part, first in ((model.encoder, 2), (model.decoder, 1)):
            for number, width in enumerate(widths if first == 2 else widths[::-1]):
                part.insert(first + 3 * number, nn.BatchNorm1d(width))
        model.decoder.append(nn.Sigmoid())
        return model

    def descend(
        self,
        start: ModelState,
        samples: Tensor,
        epochs: int,
        source: Randomness,
        to: Pulls,
        least: int = 0,
    ) -> tuple[ModelState, float]:
        """Train for some epochs by ``fed_dcn_loss``; return the weights and the last loss.

        No batch has fewer than ``least`` samples.
        """
        network, loss = self._flat_network(self.make_model, trained=True), torch.zeros(())
        network.load(start)
        optimizer = FlatAdam(network)
        optimizer.begin(self.config.learning_rate)
        batches = (b for n in range(epochs) for b in self._batches(len(samples), source, n, least))
        for batch in (indices for indices in batches if len(indices) > 1):  # for BatchNorm
            points, (centroids, targets) = to_float(samples[batch]).flatten(1), to
            pulls = centroids, None if targets is None else targets[batch]
            loss = fed_dcn_loss(self.config, points, network(points), pulls)
            network.backward(loss)
            network.gradients /= network.gradients.norm().clamp(min=1)  # as in the public code
            optimizer.step()
        self._check_finite(network.weights)
        return network.state(), float(loss.detach())

    def find(self, model: ModelState, samples: Tensor, source: Randomness, start: Maybe) -> Tensor:
        """Run k-means on latents, from centroids or at random; return (at most k, latent)."""
        k, latents = self.clusters if start is None else len(start), self.encode(model, samples)
        return kmeans(latents, k, seed=source.integer("k-means"), init=start).centroids.float()

    def train(
        self,
        start: ModelState,
        x: Tensor,
        source: Randomness,
        targets: Maybe = None,
        least: int = 0,
    ) -> tuple[ModelState, Tensor]:
        """Train without, then with the term of k-means; return the weights and the centroids."""
        model, _ = self.descend(
            start, x, self.config.pretrain_epochs, source, (None, targets), least
        )
        centroids = self.find(model, x, source, None)
        model, _ = self.descend(model, x, self.config.epochs, source, (centroids, targets), least)
        return model, self.find(model, x, source, centroids)

    def describe(self, model: ModelState, samples: Tensor, centroids: Tensor) -> LocalClusters:
        """Describe clusters; a deviation is that of distances, and 1 of a single sample."""
        latents = self.encode(model, samples)
        labels = nearest(latents, centroids)
        distances = (latents - centroids[labels]).norm(dim=1)
        own = [distances[labels == cluster] for cluster in range(len(centroids))]
        deviations = torch.stack([d.std() if len(d) > 1 else d.new_ones(()) for d in own])
        sizes = labels.bincount(minlength=len(centroids)).clamp(min=1).double()
        return LocalClusters(centroids, sizes, part_of(model, "decoder"), deviations.float())

    def decoders(
        self, clients: Sequence[LocalClusters], generator: torch.Generator
    ) -> Iterator[Decoder]:
        """Yield decoders, with latents from N(centroid, deviation²) in proportion to sizes."""
        ends = torch.cat([own.sizes for own in clients]).cpu().cumsum(0)
        ends = (ends / ends[-1] * self.config.synthetic).round().long()
        numbers, lengths = ends.diff(prepend=ends.new_zeros(1)), [len(own.sizes) for own in clients]
        for own, shares in zip(clients, torch.split(numbers, lengths), strict=True):
            rows = torch.arange(len(shares)).repeat_interleave(shares)
            noise = torch.randn(len(rows), self.config.latent, generator=generator)
            latents = own.centroids[rows] + own.deviations[rows, None] * noise.to(own.centroids)
            network = self._flat_network(lambda: self.make_model().decoder, trained=False)
            network.load({n.removeprefix("decoder."): entry for n, entry in own.decoder.items()})
            yield network, latents.to(network.weights)

    @torch.no_grad()
    def draw(self, clients: Sequence[LocalClusters], generator: torch.Generator) -> Tensor:
        """Draw images of all clients: latents near their centroids, decoded."""
        drawn = [decode(latents)[0] for decode, latents in self.decoders(clients, generator)]
        return (torch.cat(drawn).nan_to_num() * 255).round().byte().view(-1, *self.image_shape)


def part_of(model: ModelState, name: str) -> ModelState:
    """Return the weights of an autoencoder's ``encoder`` or ``decoder``."""
    return {entry: tensor for entry, tensor in model.items() if entry.startswith(f"{name}.")}


def check_umap(config: FedDCNConfig) -> None:
    """Refuse ``dcn.embedding = umap`` where the extra is not installed."""
    if config.embedding == "umap" and find_spec("umap") is None:
        needs = " needs umap-learn: pip install '.[umap]', or give dcn.embedding = none"
        raise UsageError(KeyValue("dcn.embedding", "umap"), needs)


def embed(samples: Tensor, config: FedDCNConfig, seed: int) -> Maybe:
    """Embed images by UMAP, as the public code does: floats of shape (samples, latent).

    It is None without an embedding, and for too few images to have one.
    """
    if config.embedding == "none" or len(samples) < config.latent + 2:
        return None
    from umap import UMAP  # Imported here: it is an extra, and takes seconds.

    points, neighbours = to_float(samples).flatten(1).cpu().numpy(), min(15, len(samples) - 1)
    with _ONE_AT_A_TIME:
        threads, seed = torch.get_num_threads(), seed % 2**32
        umap = UMAP(neighbours, config.latent, min_dist=0.1, random_state=seed, n_jobs=1)
        found = umap.fit_transform(points)
        torch.set_num_threads(threads)  # UMAP sets OpenMP's number to that of all cores
    return torch.from_numpy(found).to(samples.device)
