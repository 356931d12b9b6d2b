"""What clients of CCFC and CCFC++ do with their own images, a cohort of them side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.ccfc.centroids import CentroidRule
from ccfcpp.clustering.ccfc.config import LossConfig, ModelConfig
from ccfcpp.clustering.ccfc.losses import cluster_contrast, decorrelation, negative_cosine, siamese
from ccfcpp.clustering.ccfc.messages import CCFCState
from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.clustering.ccfc.representations import GlobalModel, represent
from ccfcpp.clustering.ccfc.schedule import contrast_learning_rate, training_of
from ccfcpp.clustering.kmeans.centroids import required_centroids
from ccfcpp.core.config import ViewsConfig
from ccfcpp.core.pace import tell_images
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import ViewParameters, draw_views, render_views
from ccfcpp.data.batches import CohortBatch, MeanLosses, cohort_batches
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client, memory_of
from ccfcpp.models.batch_statistics import batch_mean
from ccfcpp.models.stack.optimizers import StackedAdam
from ccfcpp.models.stack.stacked import ModelStack
from ccfcpp.models.state import ModelState, random_state

BatchLoss = Callable[[CohortBatch], Tensor]
"""From a batch of each client to its loss, of shape (clients,)."""


@dataclass(frozen=True)
class Trained:
    """What local training leaves of a client.

    Attributes:
        model: A copy of its weights and buffers.
        loss: Mean loss of its batches; None for one that has no batch of two samples.
        latents: What the model makes of the client's images, of shape (samples, latent); None
            where nobody asked for them.
    """

    model: ModelState
    loss: float | None
    latents: Tensor | None = None


def pretraining_loss(
    latents: Tensor,
    predictions: Tensor,
    reference: Tensor | None,
    weights: LossConfig,
    mask: Tensor | None,
) -> Tensor:
    """SimSiam's loss with the model-contrastive term, and decorrelation where it is asked for.

    Args:
        latents: z of shape (clients, 2, batch, latent), of two views of each image.
        predictions: p of the same shape.
        reference: The global model's predictions, of the same shape; None where λ is 0.
        weights: Weights of the terms.
        mask: Which samples count, of shape (clients, batch).

    Returns:
        Tensor of shape (clients,).
    """
    by_view = None if mask is None else mask.unsqueeze(1)
    loss = siamese(predictions.unbind(1), latents.unbind(1), mask)
    if reference is not None:
        drift = batch_mean(negative_cosine(predictions, reference), by_view)
        loss = loss + weights.lam * drift.mean(dim=1)
    if weights.pretrain_eta:
        term = decorrelation(latents, by_view, weights.scale)
        loss = loss + weights.pretrain_eta * term.mean(dim=1)
    return loss


class ContrastiveTrainer:
    """A stack of networks that are trained, and the frozen global one.

    One trainer serves all clients of a process, cohort after cohort: it holds nothing of a client
    once the next cohort begins. A cohort is given in descending order of size.
    """

    def __init__(
        self,
        problem: Problem,
        make_model: Callable[[], ContrastiveModel],
        cohort: int,
        global_model: GlobalModel,
        rule: CentroidRule,
    ) -> None:
        config, self.device = problem.config, problem.device
        self.make_model = make_model
        self.global_model = global_model
        self.rule = rule
        self.model = config.section(ModelConfig)
        self.training = training_of(config)
        self.loss = config.section(LossConfig)
        self.views = config.section(ViewsConfig)
        self.models = ModelStack(
            make_model, cohort, self.device, precision=config.compute.precision
        )

    def pretrain(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness, see: bool
    ) -> list[Trained]:
        """Contrastive pre-training on two random views of each image.

        Training starts from the global model, at first from weights of each client's own.
        """
        weights = self.loss
        starts = [message.model] * len(clients)
        if message.version == 0 and self.model.initialization == "separate":
            generators = [randomness.of_client(each.id).generator("model") for each in clients]
            starts = [random_state(self.make_model, each, self.device) for each in generators]
        self.global_model.use(message.model, message.version)
        images = torch.cat([client.images for client in clients])

        def losses(batch: CohortBatch, views: ViewParameters) -> Tensor:
            pairs = torch.stack([batch.index, batch.index + len(images)], dim=1).flatten()
            with section("views: render"):
                rendered = render_views(to_float(images[pairs % len(images)]), views[pairs])
            latents, predictions = self.models(rendered, views=2, mask=batch.mask)
            reference = None
            if weights.lam:
                with section("global model"), torch.no_grad():
                    reference = self.global_model.network(rendered)[1].view_as(predictions)
            return pretraining_loss(latents, predictions, reference, weights, batch.mask)

        def epoch_loss(epoch: int) -> BatchLoss:
            with section("views: draw"):
                views = self._draw_views(clients, randomness, epoch)
            return lambda batch: losses(batch, views)

        rate = self.training.learning_rate
        losses_of = self._train(starts, clients, "pretraining", rate, epoch_loss, randomness)
        return self._trained(clients, losses_of, see)

    def _draw_views(
        self, clients: Sequence[Client], randomness: Randomness, epoch: int
    ) -> ViewParameters:
        """First views of all clients' images, then their second views."""
        drawn = [
            draw_views(
                2 * len(client),
                self.views,
                (client.images.shape[2], client.images.shape[3]),
                randomness.of_client(client.id).generator(f"views {epoch}"),
            )
            for client in clients
        ]
        halves = [v[: len(v) // 2] for v in drawn] + [v[len(v) // 2 :] for v in drawn]
        return ViewParameters.join(halves).to(self.device)

    def contrast(
        self, message: CCFCState, clients: Sequence[Client], randomness: Randomness, see: bool
    ) -> list[Trained]:
        """Cluster-contrastive training with pseudo-labels, Eqs. (1) and (10) of the paper."""
        weights, centroids = self.loss, required_centroids(message.centroids)
        seen = [
            self.global_model.representations(message.model, message.version, c) for c in clients
        ]
        pseudo_labels = torch.cat([self.rule.assign(own.latents, centroids) for own in seen])
        references = torch.cat([own.predictions for own in seen]) if weights.lam else None
        images = torch.cat([client.images for client in clients])

        def losses(batch: CohortBatch) -> Tensor:
            shown = to_float(images[batch.index.flatten()])
            latents, predictions = (part[:, 0] for part in self.models(shown, mask=batch.mask))
            loss = cluster_contrast(
                predictions,
                latents,
                None if references is None else references[batch.index],
                pseudo_labels[batch.index],
                len(centroids),
                weights.lam,
                weights.min_cluster_size,
                batch.mask,
            )
            if weights.eta:
                loss = loss + weights.eta * decorrelation(latents, batch.mask, weights.scale)
            return loss

        rate = contrast_learning_rate(self.training, randomness.round)
        starts = [message.model] * len(clients)
        losses_of = self._train(starts, clients, "contrast", rate, lambda _: losses, randomness)
        return self._trained(clients, losses_of, see)

    def _train(
        self,
        starts: Sequence[ModelState],
        clients: Sequence[Client],
        phase: str,
        learning_rate: float,
        epoch_loss: Callable[[int], BatchLoss],
        randomness: Randomness,
    ) -> list[float | None]:
        """Descend the losses from ``starts``, with each client's own Adam state of this phase."""
        training = self.training
        for index, start in enumerate(starts):
            self.models.load(index, start)
        self.models.train()
        optimizer = StackedAdam(
            self.models.parameters[: len(clients)],
            self.models.gradients[: len(clients)],
            learning_rate,
        )
        if training.keep_optimizer:
            for index, client in enumerate(clients):
                if moments := memory_of(client.memory, phase):
                    optimizer.restore(index, moments)
        means = MeanLosses(len(clients), self.device)
        for epoch in range(training.local_epochs):
            loss_of = epoch_loss(epoch)
            batches = cohort_batches(
                [len(client) for client in clients],
                training.batch_size,
                [randomness.of_client(c.id).generator(f"batches {epoch}") for c in clients],
                self.device,
            )
            for batch in batches:
                self.models.activate(len(batch))
                with section("training: forward"):
                    losses = loss_of(batch)
                with section("training: backward"):
                    self.models.backward(losses.sum())
                with section("training: optimizer"):
                    optimizer.step(len(batch))
                means.add(losses)
                tell_images(batch.index.numel(), training.local_epochs)
        if training.keep_optimizer:
            for index, client in enumerate(clients):
                if means.steps[index]:  # Else what the client remembers still stands.
                    state = optimizer.state(index)
                    # Moments of another phase are forgotten.
                    client.memory = {f"{phase}/{name}": t for name, t in state.items()}
        return means.means()

    def _trained(
        self, clients: Sequence[Client], losses: Sequence[float | None], with_latents: bool
    ) -> list[Trained]:
        trained = []
        for index, (client, loss) in enumerate(zip(clients, losses, strict=True)):
            model, latents = self.models.state(index), None
            if with_latents:
                self.models.activate(1, first=index)
                latents = represent(self.models, client.images).latents
            trained.append(Trained(model, loss, latents))
        return trained
