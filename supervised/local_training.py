"""Local training: SGD on the cross-entropy of a client's images."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.profiling import section
from ccfcpp.core.progress import report_images
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.optimizers import FlatSGD
from ccfcpp.models.steps import Batches, Inputs, MeanLoss, Step, Training, make_recorder
from supervised.augmentation import Augmenter
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.losses import DecorrelationTerm
from supervised.messages import Broadcast, LocalUpdate
from supervised.methods.local import LocalContext
from supervised.networks import Classifier
from supervised.sharing import Sharing


class LocalTrainer:
    """Trainer of local models: a network and an optimizer, which serve one client after another."""

    def __init__(
        self,
        config: ClassifyConfig,
        make_model: Callable[[], Classifier],
        sharing: Sharing,
        decorrelation: DecorrelationTerm | None,
        classes: int,
        least: int = 0,
    ) -> None:
        self.config = config
        self.sharing = sharing
        device, training = sharing.device, config.training
        precision = config.compute.precision
        self.network = FlatNetwork(make_model, device, precision=precision)
        self.optimizer = FlatSGD(
            self.network, training.learning_rate, training.momentum, training.weight_decay
        )
        self.augmenter = Augmenter(config, device)
        self.decorrelation = decorrelation
        self.inputs = Inputs(device, make_recorder(device))
        self.batches = Batches(self.inputs, training.batch_size, least)
        self.mean, self.term = MeanLoss(device), MeanLoss(device)
        self.step = Step(self._step, training.batch_size, self.inputs)
        context = LocalContext(config, self.network, self.inputs, make_model, sharing, classes)
        self.method = CLASSIFIERS[config.method].local(context)

    def train(
        self, message: Broadcast, client: Client, randomness: Randomness
    ) -> Training[LocalUpdate]:
        """Return a generator that trains a client's model; it yields after each optimizer step.

        Its return value is the client's update.
        """
        training, source = self.config.training, randomness.of_client(client.id)
        self.network.load(self.method.start(message, client))
        self.network.train()
        self.optimizer.begin()
        self.method.begin(message, client)
        self.mean.begin()
        self.inputs.put("labels", client.labels)
        steps, terms = 0, list[float | None]()
        for epoch in range(training.local_epochs):
            with section("augmentation: draw"):
                images, changes = self.augmenter.draw(client, source, epoch)
            self.inputs.put("images", images)
            self.inputs.put("changes", changes)
            self.term.begin()
            lengths = self.batches.shuffle(len(client), source.generator(f"batches {epoch}"))
            for samples in lengths:
                self.step(samples)
                report_images(samples, training.local_epochs)
                yield
            steps += len(lengths)
            if self.decorrelation is not None and self.config.decorrelation.log_epochs:
                terms.append(self.term.mean(len(lengths)))
        model = self.sharing.shared(self.network.state())
        loss = self.mean.mean(steps)
        update = LocalUpdate(model, len(client), steps, loss, _by_epoch(terms))
        return self.method.finish(client, update)

    def _step(self, samples: int) -> None:
        """Make an optimizer step with the next batch, of ``samples`` images."""
        index = self.batches.next(samples)
        with section("augmentation: render"):
            images, changes = self.inputs["images"][index], self.inputs["changes"]
            shown = self.augmenter.render(images, changes, index)
        labels = self.inputs["labels"][index]

        def backward() -> Tensor:
            with section("training: forward"):
                loss = self._loss(shown, labels)
            with section("training: backward"):
                self.network.backward(loss)
            return loss.detach()

        self.mean.add(self.method.descend(backward))
        if self.decorrelation is not None:
            self.term.add(self._last_term)  # of the last pass, if a method makes several
        with section("training: optimizer"):
            self.optimizer.step()
            self.method.after_step()

    def _loss(self, shown: Tensor, labels: Tensor) -> Tensor:
        representations, logits = self.network(shown)
        loss = F.cross_entropy(self.method.logits(logits), labels)
        if self.decorrelation is not None:
            term = self.decorrelation(representations)
            self._last_term = term.detach()
            loss = loss + self.config.decorrelation.beta * term
        penalty = self.method.penalty(shown, representations)
        return loss if penalty is None else loss + penalty


def _by_epoch(terms: list[float | None]) -> Tensor | None:
    """Stack decorrelation terms, one per epoch, float64 of shape (epochs,); None if one is None."""
    known = [term for term in terms if term is not None]
    whole = known and len(known) == len(terms)
    return torch.tensor(known, dtype=torch.float64) if whole else None
