"""What clients of CCFC and CCFC++ do with their own images, a cohort of them side by side."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ccfcpp.clustering.ccfc.losses import (
    batch_mean,
    cluster_contrast,
    decorrelation,
    negative_cosine,
    siamese,
)
from ccfcpp.clustering.ccfc.network import ContrastiveModel
from ccfcpp.clustering.ccfc.representations import GlobalModel, Representations, represent
from ccfcpp.core.config import ClusterConfig, LossConfig, TrainingConfig
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.augmentation import ViewParameters, draw_views, render_views
from ccfcpp.data.batches import CohortBatch, cohort_batches
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client, memory_of
from ccfcpp.models.stack.adam import StackedAdam
from ccfcpp.models.stack.layout import ModelState
from ccfcpp.models.stack.stacked import ModelStack

BatchLoss = Callable[[CohortBatch], Tensor]
"""From a batch of each client to its loss, of shape (clients,)."""


def contrast_learning_rate(training: TrainingConfig, number: int) -> float:
    """The learning rate of round ``number``, counted from the start of the run.

    With the cosine schedule (Loshchilov and Hutter 2017, without restarts) it starts at the
    configured rate in the first cluster-contrastive round and would reach 0 after the last.
    """
    if training.schedule == "constant":
        return training.learning_rate
    done = (number - training.pretrain_rounds) / training.rounds
    return training.learning_rate * (1 + math.cos(math.pi * done)) / 2


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
    loss = siamese(_pair(predictions), _pair(latents), mask)
    if reference is not None:
        drift = batch_mean(negative_cosine(predictions, reference), by_view)
        loss = loss + weights.lam * drift.mean(dim=1)
    if weights.pretrain_eta:
        loss = loss + weights.pretrain_eta * decorrelation(latents, by_view).mean(dim=1)
    return loss


class LocalTrainer:
    """A stack of networks that are trained, and the frozen global one.

    One trainer serves all clients of a process, cohort after cohort: it holds nothing of a client
    once the next cohort begins. A cohort is given in descending order of size.

    Args:
        make_model: Builds the network; its weights come with the messages.
        config: The run's configuration.
        cohort: How many clients are trained together at most.
        device: Where the networks live.
    """

    def __init__(
        self,
        make_model: Callable[[], ContrastiveModel],
        config: ClusterConfig,
        cohort: int,
        device: torch.device,
    ) -> None:
        self.device = device
        self.config = config
        self.cohort = cohort
        precision = config.compute.precision
        self.models = ModelStack(make_model, cohort, device, precision=precision)
        self.global_model = GlobalModel(
            ModelStack(make_model, 1, device, trained=False, precision=precision)
        )

    def trained_model(self, index: int) -> ModelState:
        """A copy of the weights and buffers of one of the models just trained."""
        return self.models.state(index)

    def local_representations(self, index: int, client: Client) -> Representations:
        """What one of the models just trained makes of its client's images."""
        self.models.activate(1, first=index)
        return represent(self.models, client.images)

    def pretrain(
        self,
        starts: Sequence[ModelState],
        global_model: ModelState,
        version: int,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> list[float | None]:
        """Contrastive pre-training on two random views of each image.

        Args:
            starts: The weights each client starts from.
            global_model: The frozen model of the model-contrastive term.
            version: Its number.
            clients: The cohort.
            randomness: The source, set to the round.

        Returns:
            Mean loss of each client's batches; None for one that has no batch of two samples.
        """
        weights = self.config.loss
        self.global_model.use(global_model, version)
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

        rate = self.config.training.learning_rate
        return self._train(starts, clients, "pretraining", rate, epoch_loss, randomness)

    def _draw_views(
        self, clients: Sequence[Client], randomness: Randomness, epoch: int
    ) -> ViewParameters:
        """First views of all clients' images, then their second views."""
        drawn = [
            draw_views(
                2 * len(client),
                self.config.views,
                (client.images.shape[2], client.images.shape[3]),
                randomness.of_client(client.id).generator(f"views {epoch}"),
            )
            for client in clients
        ]
        halves = [v[: len(v) // 2] for v in drawn] + [v[len(v) // 2 :] for v in drawn]
        return ViewParameters.join(halves).to(self.device)

    def contrast(
        self,
        global_model: ModelState,
        seen: Sequence[Representations],
        labels: Sequence[Tensor],
        clusters: int,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> list[float | None]:
        """Cluster-contrastive training, Eq. (10) of the paper.

        Args:
            global_model: The weights to start from.
            seen: What the global model makes of each client's images.
            labels: Each client's pseudo-labels, int64 of shape (samples,).
            clusters: Number of clusters the labels come from.
            clients: The cohort.
            randomness: The source, set to the round.

        Returns:
            Mean loss of each client's batches; None for one that has no batch of two samples.
        """
        weights = self.config.loss
        images = torch.cat([client.images for client in clients])
        references = torch.cat([own.predictions for own in seen]) if weights.lam else None
        pseudo_labels = torch.cat(list(labels))

        def losses(batch: CohortBatch) -> Tensor:
            shown = to_float(images[batch.index.flatten()])
            latents, predictions = (part[:, 0] for part in self.models(shown, mask=batch.mask))
            loss = cluster_contrast(
                predictions,
                latents,
                None if references is None else references[batch.index],
                pseudo_labels[batch.index],
                clusters,
                weights.lam,
                weights.min_cluster_size,
                batch.mask,
            )
            if weights.eta:
                loss = loss + weights.eta * decorrelation(latents, batch.mask)
            return loss

        rate = contrast_learning_rate(self.config.training, randomness.round)
        starts = [global_model] * len(clients)
        return self._train(starts, clients, "contrast", rate, lambda _: losses, randomness)

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
        training = self.config.training
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
        totals, steps = torch.zeros(len(clients), device=self.device), [0] * len(clients)
        for epoch in range(training.local_epochs):
            loss_of = epoch_loss(epoch)
            for batch in self._batches(clients, randomness, epoch):
                self.models.activate(len(batch))
                with section("training: forward"):
                    losses = loss_of(batch)
                with section("training: backward"):
                    self.models.backward(losses.sum())
                with section("training: optimizer"):
                    optimizer.step(len(batch))
                totals[: len(batch)] += losses.detach()
                steps[: len(batch)] = [count + 1 for count in steps[: len(batch)]]
        if training.keep_optimizer:
            for index, client in enumerate(clients):
                if steps[index]:  # Else what the client remembers still stands.
                    state = optimizer.state(index)
                    # Moments of another phase are forgotten.
                    client.memory = {f"{phase}/{name}": t for name, t in state.items()}
        return [
            total / count if count else None
            for total, count in zip(totals.tolist(), steps, strict=True)
        ]

    def _batches(
        self, clients: Sequence[Client], randomness: Randomness, epoch: int
    ) -> Iterator[CohortBatch]:
        return cohort_batches(
            [len(client) for client in clients],
            self.config.training.batch_size,
            [randomness.of_client(c.id).generator(f"batches {epoch}") for c in clients],
            self.device,
        )


def _pair(by_view: Tensor) -> tuple[Tensor, Tensor]:
    """Split (clients, 2, …) into both views."""
    return by_view[:, 0], by_view[:, 1]
