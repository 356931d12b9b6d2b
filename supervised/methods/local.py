"""What methods add to local training.

There is one training loop (``supervised.local_training``); a method changes what the hooks of
``LocalMethod`` let it change. Everything has a leading axis of clients: a cohort is trained side by
side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ccfcpp.data.batches import CohortBatch
from ccfcpp.engine.client import Client, Memory
from ccfcpp.models.stack.layout import ModelState
from ccfcpp.models.stack.stacked import ModelStack
from supervised.config import ClassifyConfig
from supervised.exchange import Broadcast
from supervised.losses import model_contrast
from supervised.networks import fresh_normalisations

_HELD = "held/"
"""Prefix of the names under which a client remembers entries of models."""


@dataclass(frozen=True)
class Workplace:
    """What a method may use.

    Attributes:
        config: The run's configuration.
        models: The stack in which a cohort is trained.
        make_model: Builds a network.
        classes: Number of classes.
        device: Where the computation runs.
    """

    config: ClassifyConfig
    models: ModelStack
    make_model: Callable[[], nn.Module]
    classes: int
    device: torch.device


@dataclass(frozen=True)
class Finished:
    """What local training leaves of a client, beside its model.

    Attributes:
        memory: What the client keeps for its next round.
        control_change: How much its control variate has changed, where the method has one.
    """

    memory: Memory
    control_change: Tensor | None = None


class LocalMethod:
    """FedAvg (McMahan et al. 2017): SGD on the loss, and nothing else.

    One object serves a process, cohort after cohort.

    Args:
        place: What it may use.
    """

    def __init__(self, place: Workplace) -> None:
        self.place = place

    def start(self, message: Broadcast, client: Client) -> ModelState:
        """The model a client starts from."""
        return message.model

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """A cohort begins; the models are loaded."""

    def logits(self, logits: Tensor) -> Tensor:
        """Change the logits (clients, batch, classes) before the loss."""
        return logits

    def penalty(self, images: Tensor, representations: Tensor, batch: CohortBatch) -> Tensor | None:
        """A term to add to the loss, of shape (clients,).

        Args:
            images: What the models saw, float of shape (clients · batch, channels, height, width).
            representations: What they made of it, of shape (clients, batch, features).
            batch: Which samples count.
        """
        return None

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Set the gradients for a step.

        Args:
            backward: One forward and backward pass with the weights as they are; it sets the
                gradients and gives the losses, of shape (clients,).
        """
        return backward()

    def after_step(self) -> None:
        """The optimizer has moved the active models."""

    def finish(self, index: int, client: Client, steps: int) -> Finished:
        """What a client keeps for its next round; the cohort has ended."""
        return Finished(client.memory)

    def shared(self, model: ModelState) -> ModelState:
        """The entries of a model that travel."""
        return model

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """The model with which a client predicts, from the global one and what it remembers."""
        return model


class Proximal(LocalMethod):
    """FedProx (Li et al. 2020): μ/2 ‖w − w_global‖² is added to the loss."""

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Note where the models start."""
        self._start = self.place.models.weights.clone()

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Add the term's gradient μ(w − w_global), without any graph."""
        losses = backward()
        models = self.place.models
        drift = models.weights - self._start[: len(models.weights)]
        models.weight_gradients.add_(drift, alpha=self.place.config.fedprox.mu)
        return losses


class ModelContrast(LocalMethod):
    """MOON (Li, He and Song 2021): representations near the global model's, off the last local's.

    Both frozen models are in evaluation mode, as in the authors' code. A client that takes part for
    the first time has no last model: the global one takes its place, and the term has no gradient.
    """

    def __init__(self, place: Workplace) -> None:
        super().__init__(place)
        precision = place.config.compute.precision
        capacity = len(place.models.parameters)
        self._global, self._previous = (
            ModelStack(place.make_model, count, place.device, trained=False, precision=precision)
            for count in (1, capacity)
        )

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Load the frozen models."""
        self._global.load(0, message.model)
        for index, client in enumerate(clients):
            self._previous.load(index, _held(client.memory) or message.model)

    @torch.no_grad()
    def _frozen(self, images: Tensor, clients: int) -> tuple[Tensor, Tensor]:
        self._previous.activate(clients)
        of_global = self._global(images)[0]
        of_previous = self._previous(images)[0]
        return of_global.view(of_previous.shape)[:, 0], of_previous[:, 0]

    def penalty(self, images: Tensor, representations: Tensor, batch: CohortBatch) -> Tensor | None:
        """μ times the model-contrastive loss."""
        settings = self.place.config.moon
        of_global, of_previous = self._frozen(images, len(batch))
        loss = model_contrast(
            representations, of_global, of_previous, settings.temperature, batch.mask
        )
        return settings.mu * loss

    def finish(self, index: int, client: Client, steps: int) -> Finished:
        """Keep the model just trained."""
        return Finished(_hold(self.place.models.state(index)))


class ControlVariates(LocalMethod):
    """SCAFFOLD (Karimireddy et al. 2020), option II.

    Steps are corrected by −η(c − c_i) after the optimizer's, so that momentum does not multiply the
    correction: the control variates (x − y_i)/(Kη) hold its factor already.
    """

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Take up the server's and the clients' control variates."""
        models = self.place.models
        self._start = models.weights.clone()
        assert message.control is not None
        self._server = message.control
        self._own = torch.stack(
            [c.memory.get("control", torch.zeros_like(self._server)) for c in clients]
        )
        rate = self.place.config.training.learning_rate
        self._correction = rate * (self._server - self._own)

    def after_step(self) -> None:
        """Correct the step."""
        weights = self.place.models.weights
        weights.sub_(self._correction[: len(weights)])

    def finish(self, index: int, client: Client, steps: int) -> Finished:
        """c_i⁺ − c_i = (x − y_i)/(Kη) − c; 0 for a client that made no step."""
        change = torch.zeros_like(self._server)
        if steps:
            moved = self._start[index] - self.place.models.weights[index]
            change = moved / (steps * self.place.config.training.learning_rate) - self._server
        return Finished({"control": self._own[index] + change}, change)


class PersonalNormalisation(LocalMethod):
    """FedBN (Li et al. 2021): batch normalisation, with its statistics, stays at the client."""

    def __init__(self, place: Workplace) -> None:
        super().__init__(place)
        with torch.device("meta"):
            model = place.make_model()
        fresh = fresh_normalisations(model)
        # Counters stay on the CPU, where they are counted.
        self._fresh = {
            name: entry.to(place.device) if entry.is_floating_point() else entry
            for name, entry in fresh.items()
        }

    def start(self, message: Broadcast, client: Client) -> ModelState:
        """The global layers with the client's own normalisations."""
        return self.personal(message.model, client.memory)

    def personal(self, model: ModelState, memory: Memory) -> ModelState:
        """The global layers with the client's own normalisations, new ones at first."""
        return model | (_held(memory) or self._fresh)

    def finish(self, index: int, client: Client, steps: int) -> Finished:
        """Keep the normalisations just trained."""
        model = self.place.models.state(index)
        return Finished(_hold({name: model[name].clone() for name in self._fresh}))

    def shared(self, model: ModelState) -> ModelState:
        """All but the normalisations."""
        return {name: entry for name, entry in model.items() if name not in self._fresh}


class RestrictedSoftmax(LocalMethod):
    """FedRS (Li and Zhan 2021): logits of classes that a client does not hold are scaled down."""

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Note which classes each client holds."""
        strength = self.place.config.fedrs.strength
        held = class_counts(clients, self.place.classes) > 0
        self._factors = torch.where(held, 1.0, strength).unsqueeze(1)

    def logits(self, logits: Tensor) -> Tensor:
        """Scale the logits."""
        return logits * self._factors[: len(logits)].to(logits.dtype)


class CalibratedLogits(LocalMethod):
    """FedLC (Zhang et al. 2022): margins τ·n^(−1/4) by the client's number n of each class.

    A class that a client does not hold has an infinite margin: it takes no part in its softmax.
    """

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Note how many samples of each class a client has."""
        counts = class_counts(clients, self.place.classes)
        margins = self.place.config.fedlc.temperature * counts.clamp(min=1).pow(-0.25)
        self._margins = torch.where(counts > 0, margins, torch.inf).unsqueeze(1)

    def logits(self, logits: Tensor) -> Tensor:
        """Subtract the margins."""
        return logits - self._margins[: len(logits)].to(logits.dtype)


class SharpnessAware(LocalMethod):
    """FedSAM (Qu et al. 2022): the gradient at the worst point within a radius.

    Both passes move the running statistics, as in the authors' code.
    """

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Take the gradient at w + ρ g/‖g‖, with each client's own g."""
        losses = backward()
        models = self.place.models
        gradients, before = models.weight_gradients, models.weights.clone()
        norms = gradients.norm(dim=1, keepdim=True)
        models.weights.add_(gradients * (self.place.config.fedsam.radius / (norms + 1e-12)))
        backward()
        models.weights.copy_(before)
        return losses


def class_counts(clients: Sequence[Client], classes: int) -> Tensor:
    """How many samples of each class each client has, float of shape (clients, classes)."""
    counts = []
    for client in clients:
        assert client.labels is not None
        counts.append(torch.bincount(client.labels, minlength=classes))
    return torch.stack(counts).to(torch.get_default_dtype())


def _hold(model: ModelState) -> Memory:
    """As a memory; of a part of a model a copy, since a view would hold the whole."""
    return {_HELD + name: entry for name, entry in model.items()}


def _held(memory: Memory) -> ModelState:
    """The entries of models that a client remembers; counters go back to the CPU."""
    held = {k.removeprefix(_HELD): t for k, t in memory.items() if k.startswith(_HELD)}
    return {k: t if t.is_floating_point() else t.cpu() for k, t in held.items()}
