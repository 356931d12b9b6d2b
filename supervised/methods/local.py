"""Hooks by which methods change local training.

There is one training loop (``supervised.local_training``); a method overrides hooks of
``LocalMethod``. Steps may be recorded and replayed as CUDA graphs (``ccfcpp.models.steps``): a
tensor that a step reads, and that differs between clients or rounds, must be put into ``inputs``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ccfcpp.engine.client import Client
from ccfcpp.models.network import FlatNetwork
from ccfcpp.models.state import ModelState
from ccfcpp.models.steps import Inputs
from supervised.config import ClassifyConfig
from supervised.messages import Broadcast, LocalUpdate
from supervised.sharing import Sharing


@dataclass(frozen=True)
class LocalContext:
    """Objects of the training loop that a method may use.

    ``network`` is in training, ``inputs`` has the tensors that steps read, by name.
    """

    config: ClassifyConfig
    network: FlatNetwork
    inputs: Inputs
    make_model: Callable[[], nn.Module]
    sharing: Sharing
    classes: int


class LocalMethod:
    """Hooks of local training: base class, and plain SGD of FedAvg (McMahan et al. 2017).

    One object serves several clients, one after another.
    """

    def __init__(self, context: LocalContext) -> None:
        self.context = context
        self.config, self.network = context.config, context.network
        self.inputs = context.inputs

    def start(self, message: Broadcast, client: Client) -> ModelState:
        """Return the model from which a client's training starts: by default the global one.

        With FedBN it has the client's own batch normalisation layers.
        """
        return self.context.sharing.personal(message.model, client.memory)

    def begin(self, message: Broadcast, client: Client) -> None:
        """Prepare the training of a client; its model has been loaded into the network."""

    def logits(self, logits: Tensor) -> Tensor:
        """Change the logits (batch, classes) before the loss; here they stay as they are."""
        return logits

    def penalty(self, images: Tensor, representations: Tensor) -> Tensor | None:
        """Compute a term to add to the loss, a scalar; None for no term.

        Args:
            images: Input of the network, float of shape (batch, channels, height, width).
            representations: Representations of shape (batch, features).
        """
        return None

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Compute the network's gradients for a step, and return the loss.

        Args:
            backward: Runs a forward and a backward pass with the current weights, which sets the
                gradients, and returns the loss, a scalar.
        """
        return backward()

    def after_step(self) -> None:
        """Change the network's weights after an optimizer step; here nothing is changed."""

    def finish(self, client: Client, update: LocalUpdate) -> LocalUpdate:
        """Complete the update of a client after training.

        Args:
            client: The client, whose ``memory`` is set to what it keeps for its next round.
            update: Update of the client.

        Returns:
            The update with the fields that the method adds.
        """
        return update


def class_counts(client: Client, classes: int) -> Tensor:
    """Count a client's samples of each class, as floats of shape (classes,)."""
    assert client.labels is not None
    counts = torch.bincount(client.labels, minlength=classes)
    return counts.to(torch.get_default_dtype())
