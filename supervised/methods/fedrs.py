"""FedRS (Li and Zhan 2021): a restricted softmax."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccfcpp.core.config import Section, Share
from ccfcpp.engine.client import Client
from supervised.messages import Broadcast
from supervised.methods.local import LocalMethod, class_counts
from supervised.methods.method import Method


class RestrictedConfig(Section):
    """Restricted softmax of FedRS."""

    strength: Share = 0.5
    """Factor of the logits of classes that a client does not hold."""


class RestrictedSoftmax(LocalMethod):
    """FedRS: the logits of classes that a client does not hold are scaled down."""

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Compute the factors of each client's logits."""
        strength = self.place.config.section(RestrictedConfig).strength
        held = class_counts(clients, self.place.classes) > 0
        self._factors = torch.where(held, 1.0, strength).unsqueeze(1)

    def logits(self, logits: Tensor) -> Tensor:
        """Multiply the logits by their factors."""
        return logits * self._factors[: len(logits)].to(logits.dtype)


FEDRS = Method("FedRS", RestrictedSoftmax, sections={"fedrs": RestrictedConfig})
