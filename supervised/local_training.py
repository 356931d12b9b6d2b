"""Local training: SGD on the cross-entropy of the clients' images, a cohort side by side."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ccfcpp.core.pace import tell_images
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.batches import CohortBatch, MeanLosses, cohort_batches
from ccfcpp.engine.client import Client
from ccfcpp.models.stack.optimizers import StackedSGD
from ccfcpp.models.stack.stacked import ModelStack
from supervised.augmentation import Augmenter, Changes
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.losses import DecorrelationTerm, cross_entropy
from supervised.messages import Broadcast, LocalUpdate
from supervised.methods.local import LocalContext
from supervised.networks import Classifier
from supervised.sharing import Sharing


class LocalTrainer:
    """Trains a stack of networks by a method.

    One trainer serves all clients of a process, cohort after cohort. The clients of a cohort are in
    descending order of size.
    """

    def __init__(
        self,
        config: ClassifyConfig,
        make_model: Callable[[], Classifier],
        sharing: Sharing,
        decorrelation: DecorrelationTerm | None,
        classes: int,
        cohort: int,
    ) -> None:
        self.config = config
        self.cohort = cohort
        self.sharing = sharing
        self.device = device = sharing.device
        precision = config.compute.precision
        self.models = ModelStack(make_model, cohort, device, precision=precision)
        self.augmenter = Augmenter(config)
        self._decorrelation = decorrelation
        self._term: Tensor | None = None
        """Decorrelation term of the last forward pass, without its weight, of shape (clients,)."""
        context = LocalContext(config, self.models, make_model, sharing, classes, device)
        self.method = CLASSIFIERS[config.method].local(context)

    def train(
        self, message: Broadcast, clients: Sequence[Client], randomness: Randomness
    ) -> list[LocalUpdate]:
        """Train the models of a cohort.

        Returns:
            Each client's update.
        """
        for index, client in enumerate(clients):
            self.models.load(index, self.method.start(message, client))
        self.models.activate(len(clients))
        self.models.train()
        self.method.begin(message, clients)
        total, by_epoch = self._descend(clients, randomness)
        self.models.activate(len(clients))
        terms = [_by_epoch(own) for own in zip(*by_epoch, strict=True)] or [None] * len(clients)
        ends = zip(clients, total.means(), total.steps, terms, strict=True)
        return [self._update(index, *own) for index, own in enumerate(ends)]

    def _update(
        self, index: int, client: Client, loss: float | None, steps: int, terms: Tensor | None
    ) -> LocalUpdate:
        model = self.sharing.shared(self.models.state(index))
        update = LocalUpdate(model, len(client), steps, loss, terms)
        return self.method.finish(index, client, update)

    def _descend(
        self, clients: Sequence[Client], randomness: Randomness
    ) -> tuple[MeanLosses, list[list[float | None]]]:
        """Train for all local epochs."""
        training = self.config.training
        optimizer = StackedSGD(
            self.models.parameters[: len(clients)],
            self.models.gradients[: len(clients)],
            training.learning_rate,
            training.momentum,
            training.weight_decay,
        )
        images = torch.cat([client.images for client in clients])
        labels = torch.cat([_labels(client) for client in clients])
        means = MeanLosses(len(clients), self.device)
        terms: list[list[float | None]] = []
        for epoch in range(training.local_epochs):
            with section("augmentation: draw"):
                changes = self.augmenter.draw(clients, randomness, epoch)
            of_epoch = MeanLosses(len(clients), self.device)
            batches = cohort_batches(
                [len(client) for client in clients],
                training.batch_size,
                [randomness.of_client(c.id).generator(f"batches {epoch}") for c in clients],
                self.device,
            )
            for batch in batches:
                self.models.activate(len(batch))
                losses = self._gradients(images, labels, changes, batch)
                with section("training: optimizer"):
                    optimizer.step(len(batch))
                    self.method.after_step()
                means.add(losses)
                tell_images(batch.index.numel(), training.local_epochs)
                if self._term is not None:
                    of_epoch.add(self._term)
            if self._term is not None:
                terms.append(of_epoch.means())
        return means, terms

    def _gradients(
        self, images: Tensor, labels: Tensor, changes: Changes, batch: CohortBatch
    ) -> Tensor:
        """Set the gradients of a step, and return its losses, of shape (clients,)."""
        where = batch.index.flatten()
        with section("augmentation: render"):
            shown = self.augmenter.render(images[where], changes, where)
        wanted = labels[batch.index]

        def backward() -> Tensor:
            with section("training: forward"):
                losses = self._losses(shown, wanted, batch)
            with section("training: backward"):
                self.models.backward(losses.sum())
            return losses.detach()

        return self.method.descend(backward)

    def _losses(self, shown: Tensor, labels: Tensor, batch: CohortBatch) -> Tensor:
        representations, logits = (part[:, 0] for part in self.models(shown, mask=batch.mask))
        losses = cross_entropy(self.method.logits(logits), labels, batch.mask)
        if self._decorrelation is not None:
            term = self._decorrelation(representations, batch.mask)
            if self.config.decorrelation.log_epochs:
                self._term = term.detach()
            losses = losses + self.config.decorrelation.beta * term
        penalty = self.method.penalty(shown, representations, batch)
        return losses if penalty is None else losses + penalty


def _by_epoch(terms: Sequence[float | None]) -> Tensor | None:
    """Terms of a client, float64 of shape (epochs,); None for a client without a batch."""
    known = [term for term in terms if term is not None]
    return torch.tensor(known, dtype=torch.float64) if len(known) == len(terms) else None


def _labels(client: Client) -> Tensor:
    assert client.labels is not None
    return client.labels
