"""Hooks by which methods change local training.

There is one training loop (``supervised.local_training``), and a method overrides the hooks of
``LocalMethod``. Tensors have a leading axis of clients, since a cohort is trained side by side.
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
class LocalContext:
    """Objects of local training that a method may use."""

    config: ClassifyConfig
    models: ModelStack
    make_model: Callable[[], nn.Module]
    sharing: Sharing
    classes: int
    device: torch.device


class LocalMethod:
    """FedAvg (McMahan et al. 2017): plain SGD on the loss.

    One object serves a process, cohort after cohort.
    """

    def __init__(self, context: LocalContext) -> None:
        self.context = context
        self.config, self.models = context.config, context.models

    def start(self, message: Broadcast, client: Client) -> ModelState:
        """Return the model that a client starts from."""
        return self.context.sharing.personal(message.model, client.memory)

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Prepare for a cohort, whose models have been loaded."""

    def logits(self, logits: Tensor) -> Tensor:
        """Change the logits (clients, batch, classes) before the loss."""
        return logits

    def penalty(self, images: Tensor, representations: Tensor, batch: CohortBatch) -> Tensor | None:
        """Compute a term to add to the loss, of shape (clients,); None for no term.

        Args:
            images: Input of the models, float of shape (clients · batch, channels, height, width).
            representations: Representations of shape (clients, batch, features).
            batch: Indices and mask of the samples.
        """
        return None

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Set the gradients for a step.

        Args:
            backward: Runs a forward and a backward pass with the current weights: it sets the
                gradients and returns the losses, of shape (clients,).
        """
        return backward()

    def after_step(self) -> None:
        """Change the active models after the optimizer's step."""

    def finish(self, index: int, client: Client, update: LocalUpdate) -> LocalUpdate:
        """Complete the update of a client after training.

        Args:
            index: Place of the client in the cohort.
            client: The client, whose ``memory`` is set to what it keeps for its next round.
            update: Update of the client.

        Returns:
            The update with the fields that the method adds.
        """
        return update


def class_counts(clients: Sequence[Client], classes: int) -> Tensor:
    """Count each client's samples of each class, float of shape (clients, classes)."""
    counts = []
    for client in clients:
        assert client.labels is not None
        counts.append(torch.bincount(client.labels, minlength=classes))
    return torch.stack(counts).to(torch.get_default_dtype())
