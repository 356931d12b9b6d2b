"""Local training of CCFC and CCFC++, on a client's own images."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.clustering.kmeans.lloyd import EncoderState
from ccfcpp.clustering.systems.ccfc.centroids import CentroidRule
from ccfcpp.clustering.systems.ccfc.config import LossConfig, ModelConfig
from ccfcpp.clustering.systems.ccfc.losses import (
    cluster_contrast,
    decorrelation,
    negative_cosine,
    siamese,
)
from ccfcpp.clustering.systems.ccfc.network import ContrastiveModel
from ccfcpp.clustering.systems.ccfc.representations import GlobalModel, represent
from ccfcpp.clustering.systems.ccfc.schedule import contrast_learning_rate, training_settings
from ccfcpp.core.config import ComputeConfig, ViewsConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.progress import report_images
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import draw_views, render_views
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client, select_memory
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatAdam
from ccfcpp.models.state import ModelState, random_state
from ccfcpp.models.steps import Batches, Inputs, MeanLoss, Step, Training, make_recorder


@dataclass(frozen=True)
class TrainingResult:
    """Result of a client's local training.

    Attributes:
        model: A copy of the trained model's weights and buffers.
        loss: Mean loss of the batches; None if the client has no batch of two samples.
        latents: The model's latents of the client's images, of shape (samples, latent); None
            if they are not needed.
    """

    model: ModelState
    loss: float | None
    latents: Tensor | None = None


def pretraining_loss(
    latents: tuple[Tensor, Tensor],
    predictions: tuple[Tensor, Tensor],
    references: tuple[Tensor, Tensor] | None,
    weights: LossConfig,
) -> Tensor:
    """Return the pre-training loss: SimSiam's, plus the model-contrastive and decorrelation terms.

    Args:
        latents: Latents z of two views of each image, each of shape (batch, latent).
        predictions: Predictions p of both views, of the same shape.
        references: The global model's predictions of both views; None if their weight λ is 0.
        weights: Weights λ and η of the model-contrastive and the decorrelation term.

    Returns:
        A scalar.
    """
    loss = siamese(predictions, latents)
    if references is not None:
        drifts = map(negative_cosine, predictions, references)
        loss = loss + weights.lam * sum(drift.mean() for drift in drifts) / 2
    if weights.pretrain_eta:
        terms = [decorrelation(own, weights.scale) for own in latents]
        loss = loss + weights.pretrain_eta * (terms[0] + terms[1]) / 2
    return loss


class ContrastiveTrainer:
    """Trainer of one client after another, with a network and an optimizer that are reused.

    ``pretrain`` and ``contrast`` return generators: each step of one is a training step. The
    argument ``with_latents`` says whether the result holds the trained model's latents. No batch
    has fewer than ``least`` images.
    """

    def __init__(
        self,
        problem: Problem,
        make_model: Callable[[], ContrastiveModel],
        global_model: GlobalModel,
        rule: CentroidRule,
        least: int = 0,
    ) -> None:
        config, self.device = problem.config, problem.device
        self.make_model = make_model
        self.global_model = global_model
        self.rule = rule
        self.model = config.section(ModelConfig)
        self.training = training_settings(config)
        self.loss = config.section(LossConfig)
        self.views = config.section(ViewsConfig)
        self.network = FlatNetwork(
            make_model, self.device, precision=config.section(ComputeConfig).precision
        )
        self.adam = FlatAdam(self.network)
        self.inputs = Inputs(self.device, make_recorder(self.device))
        whole = self.training.batch_size
        self.batches = Batches(self.inputs, whole, least)
        self.mean = MeanLoss(self.device)
        self.pretraining = Step(self._pretraining_step, whole, self.inputs)
        self.contrasting = Step(self._contrast_step, whole, self.inputs)

    def pretrain(
        self, message: EncoderState, client: Client, randomness: Randomness, with_latents: bool
    ) -> Training[TrainingResult]:
        """Pre-train on two random views of each image, starting from the global model.

        In the first round, each client may instead start from random weights of its own.
        """
        own, start = randomness.of_client(client.id), message.model
        if message.version == 0 and self.model.initialization == "separate":
            start = random_state(self.make_model, own.generator("model"), self.device)
        self.global_model.load(message)

        def begin(epoch: int) -> None:
            with section("views: draw"):
                shape, source = client.images.shape[2:], own.generator(f"views {epoch}")
                drawn = draw_views(2 * len(client), self.views, (shape[0], shape[1]), source)
                self.inputs.put("first views", drawn[: len(client)])
                self.inputs.put("second views", drawn[len(client) :])

        rate = self.training.learning_rate
        return self._train(
            client, own, "pretraining", start, rate, with_latents, self.pretraining, begin
        )

    def contrast(
        self, message: EncoderState, client: Client, randomness: Randomness, with_latents: bool
    ) -> Training[TrainingResult]:
        """Train on the loss of the CCFC++ paper, Eq. (10), with pseudo-labels by Eq. (1)."""
        centroids = required_centroids(message.centroids)
        seen = self.global_model.representations(message, client)
        self.inputs.put("labels", self.rule.assign(seen.latents, centroids))
        self.inputs.put("references", seen.predictions if self.loss.lam else None)

        def step(samples: int) -> None:
            self.contrasting(samples, len(centroids))

        own = randomness.of_client(client.id)
        rate = contrast_learning_rate(self.training, randomness.round)
        return self._train(client, own, "contrast", message.model, rate, with_latents, step)

    def _pretraining_step(self, samples: int) -> None:
        index = self.batches.next(samples)
        images = to_float(self.inputs["images"][index])
        with section("views: render"):
            views = [
                render_views(images, self.inputs[name][index])
                for name in ("first views", "second views")
            ]
        with section("training: forward"):
            (z1, p1), (z2, p2) = map(self.network, views)
            references = None
            if self.loss.lam:
                with section("global model"), torch.no_grad():
                    first, second = (self.global_model.network(view)[1] for view in views)
                    references = first, second
            loss = pretraining_loss((z1, z2), (p1, p2), references, self.loss)
        self._descend(loss)

    def _contrast_step(self, samples: int, clusters: int) -> None:
        index, references = self.batches.next(samples), self.inputs["references"]
        with section("training: forward"):
            latents, predictions = self.network(to_float(self.inputs["images"][index]))
            loss = cluster_contrast(
                predictions,
                latents,
                None if references is None else references[index],
                self.inputs["labels"][index],
                clusters,
                self.loss.lam,
                self.loss.min_cluster_size,
            )
            if self.loss.eta:
                loss = loss + self.loss.eta * decorrelation(latents, self.loss.scale)
        self._descend(loss)

    def _descend(self, loss: Tensor) -> None:
        with section("training: backward"):
            self.network.backward(loss)
        with section("training: optimizer"):
            self.adam.step()
        self.mean.add(loss)

    def _train(
        self,
        client: Client,
        own: Randomness,
        phase: str,
        start: ModelState,
        learning_rate: float,
        with_latents: bool,
        step: Callable[[int], None],
        begin: Callable[[int], None] = lambda epoch: None,
    ) -> Training[TrainingResult]:
        """Run gradient descent from ``start``, with the Adam moments that the client has stored.

        ``begin`` is called before each epoch, ``step`` for each batch with its number of images.
        """
        training, steps = self.training, 0
        self.network.load(start)
        self.network.train()
        remembered = select_memory(client.memory, phase) if training.keep_optimizer else None
        self.adam.begin(learning_rate, remembered)
        self.mean.begin()
        self.inputs.put("images", client.images)
        for epoch in range(training.local_epochs):
            begin(epoch)
            for samples in self.batches.shuffle(len(client), own.generator(f"batches {epoch}")):
                step(samples)
                steps += 1
                report_images(samples, training.local_epochs)
                yield
        if training.keep_optimizer and steps:  # Without a step, stored moments stay as they are.
            # This drops the moments of another phase.
            client.memory = {f"{phase}/{name}": t for name, t in self.adam.moments().items()}
        model = self.network.state()
        latents = represent(self.network, client.images).latents if with_latents else None
        return TrainingResult(model, self.mean.mean(steps), latents)
