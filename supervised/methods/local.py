"""What methods may change of local training.

There is one training loop (``supervised.local_training``); a method changes what the hooks of
``LocalMethod`` let it change. Everything has a leading axis of clients: a cohort is trained side by
side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ccfcpp.data.batches import CohortBatch
from ccfcpp.engine.client import Client
from ccfcpp.models.stack.stacked import ModelStack
from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import Broadcast, LocalUpdate
from supervised.sharing import Sharing


@dataclass(frozen=True)
class Workplace:
    """What a method may use.

    Attributes:
        config: The run's configuration.
        models: The stack in which a cohort is trained.
        make_model: Builds a network.
        sharing: Which entries of a model travel.
        classes: Number of classes.
        device: Where the computation runs.
    """

    config: ClassifyConfig
    models: ModelStack
    make_model: Callable[[], nn.Module]
    sharing: Sharing
    classes: int
    device: torch.device


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
        return self.place.sharing.personal(message.model, client.memory)

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

    def finish(self, index: int, client: Client, update: LocalUpdate) -> LocalUpdate:
        """The cohort has ended.

        Args:
            index: The client's place in the cohort.
            client: The client; what it keeps for its next round is set as its ``memory``.
            update: What it sends.

        Returns:
            The update, with what the method adds to it.
        """
        return update


def class_counts(clients: Sequence[Client], classes: int) -> Tensor:
    """How many samples of each class each client has, float of shape (clients, classes)."""
    counts = []
    for client in clients:
        assert client.labels is not None
        counts.append(torch.bincount(client.labels, minlength=classes))
    return torch.stack(counts).to(torch.get_default_dtype())
