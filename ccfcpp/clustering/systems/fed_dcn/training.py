"""Training of FedDCN's autoencoder: the same loss at clients and server, and k-means in between.

Source: *FedDCN* (arXiv 2609.21829), "the paper", and its public code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.server import kmeans
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.clustering.systems.fed_dcn.network import Space
from ccfcpp.core.progress import report_images
from ccfcpp.data.images import to_float
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.plugin import ModelState, Problem, Randomness, RefusedUpdateError, assign_points


def fed_dcn_loss(
    config: FedDCNConfig,
    points: Tensor,
    latents: Tensor,
    reconstructed: Tensor,
    centroids: Tensor | None = None,
    embedded: Tensor | None = None,
) -> Tensor:
    """Return α·mse(g(f(x)), x) + γ·mse(f(x), u) + β·mean ‖f(x) − m‖², as in the public code.

    f is the encoder, g the decoder, u the sample's embedding, m the centroid nearest to f(x). An
    ``mse`` is a mean over samples and dimensions.

    Args:
        config: Weights α (``reconstruction``), γ (``geometry``) and β (``clustering``).
        points: Samples x, of shape (batch, pixels).
        latents: f(x), of shape (batch, latent).
        reconstructed: g(f(x)), of the shape of the points.
        centroids: Shape (k, latent); None: without the term of k-means.
        embedded: Embeddings u, of the latents' shape; None: without their term.

    Returns:
        A scalar.
    """
    loss = config.reconstruction * F.mse_loss(reconstructed, points)
    if embedded is not None:
        loss = loss + config.geometry * F.mse_loss(latents, embedded)
    if centroids is not None:
        own = centroids[assign_points(latents.detach(), centroids.to(latents))]
        loss = loss + config.clustering * (latents - own).square().sum(dim=1).mean()
    return loss


@dataclass(frozen=True)
class Known:
    """What the server sends: the autoencoder, and after its own training centroids and samples.

    Attributes:
        model: Weights of the global autoencoder.
        centroids: Global centroids, float32 of shape (at most k, latent).
        synthetic: Synthetic samples: uint8 images, or float vectors.
    """

    model: ModelState
    centroids: Tensor | None = None
    synthetic: Tensor | None = None

    def beside(self, samples: Tensor, generator: torch.Generator) -> Tensor:
        """Return samples, and as many synthetic ones, drawn at random."""
        assert self.synthetic is not None
        drawn = torch.randint(len(self.synthetic), (len(samples),), generator=generator)
        return torch.cat([samples, self.synthetic[drawn.to(samples.device)]])


class Trainer:
    """Trainer of one autoencoder after another, with a network and an optimizer that are reused.

    Its methods raise a ``RefusedUpdateError`` if the training diverges.
    """

    def __init__(self, problem: Problem) -> None:
        self.config, self.clusters = problem.config.section(FedDCNConfig), problem.clusters
        self.space = Space(problem)
        self._network = FlatNetwork(
            self.space.make_model, problem.device, precision=self.space.precision
        )
        self._adam = FlatAdam(self._network)

    def fit(
        self,
        start: ModelState,
        samples: Tensor,
        randomness: Randomness,
        embedded: Tensor | None = None,
    ) -> tuple[ModelState, Tensor]:
        """Train on reconstruction (and embedding), then with the term of k-means, too.

        k-means moves the centroids after each epoch of the second part.

        Args:
            start: The autoencoder's first weights.
            samples: uint8 images or float vectors, of shape (samples, …).
            randomness: Source of random numbers.
            embedded: Embedding of each sample, of shape (samples, latent).

        Returns:
            The weights, and centroids of shape (at most k, latent).
        """
        self._begin(start)
        for epoch in range(self.config.pretrain_epochs):
            self._epoch(samples, randomness.generator(f"pre-training {epoch}"), None, embedded)
        centroids = self.cluster(self._model(), samples, randomness)
        for epoch in range(self.config.epochs):
            self._epoch(samples, randomness.generator(f"epoch {epoch}"), centroids, embedded)
            centroids = self.cluster(self._model(), samples, randomness, centroids)
        return self._model(), centroids

    def refine(
        self, known: Known, samples: Tensor, randomness: Randomness
    ) -> tuple[ModelState, float]:
        """Train for the epochs of a round on own and synthetic samples; return weights and loss."""
        self._begin(known.model)
        loss = 0.0
        for epoch in range(self.config.local_epochs):
            generator = randomness.generator(f"epoch {epoch}")
            loss = self._epoch(known.beside(samples, generator), generator, known.centroids)
        return self._model(), loss

    def cluster(
        self,
        model: ModelState,
        samples: Tensor,
        randomness: Randomness,
        centroids: Tensor | None = None,
    ) -> Tensor:
        """Run k-means on the samples' latents, from ``centroids`` or from several random choices.

        Returns:
            Centroids, float32 of shape (at most k, latent).
        """
        return kmeans(
            self.space.encode(model, samples),
            self.clusters if centroids is None else len(centroids),
            seed=randomness.integer("k-means"),
            init=centroids,
        ).centroids.float()

    def _begin(self, start: ModelState) -> None:
        self._network.load(start)
        self._network.train()
        self._adam.begin(self.config.learning_rate)

    def _epoch(
        self,
        samples: Tensor,
        generator: torch.Generator,
        centroids: Tensor | None,
        embedded: Tensor | None = None,
    ) -> float:
        """Train for an epoch; return the mean loss of its batches."""
        losses: list[Tensor] = []
        order = torch.randperm(len(samples), generator=generator).to(samples.device)
        for batch in torch.split(order, self.config.batch_size):
            if len(batch) == 1:  # which batch normalisation cannot do
                continue
            points = to_float(samples[batch]).flatten(1)
            latents, reconstructed = self._network(points)
            target = None if embedded is None else embedded[batch]
            loss = fed_dcn_loss(self.config, points, latents, reconstructed, centroids, target)
            self._network.backward(loss)
            # The public code scales gradients down to a norm of 1.
            self._network.gradients /= self._network.gradients.norm().clamp(min=1)
            self._adam.step()
            losses.append(loss.detach())
            report_images(len(batch), self.config.local_epochs)
        return float(torch.stack(losses).mean())

    def _model(self) -> ModelState:
        """Return a copy of the weights, which are finite."""
        if not bool(self._network.weights.isfinite().all()):
            raise RefusedUpdateError(
                f"feddcn.learning_rate = {self.config.learning_rate:g} made its network "
                "diverge: give a lower one"
            )
        return self._network.state()
