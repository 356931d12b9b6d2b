"""Methods that change logits by the classes that a client holds: FedRS and FedLC.

Sources: Li and Zhan 2021 (FedRS); Zhang et al. 2022 (FedLC).
"""

import torch
from torch import Tensor

from ccfcpp.core.config import Section, Share, Weight
from ccfcpp.engine.client import Client
from supervised.messages import Broadcast
from supervised.methods.local import LocalMethod, class_counts
from supervised.methods.method import Method


class RestrictedConfig(Section):
    """Settings of FedRS's restricted softmax, which scales down logits of missing classes."""

    strength: Share = 0.5
    """Factor of the logits of classes that a client does not hold."""


class RestrictedSoftmax(LocalMethod):
    """Local training of FedRS (Li and Zhan 2021): scales down logits of classes without samples."""

    def begin(self, message: Broadcast, client: Client) -> None:
        """Set the factors of the logits: 1 for classes that the client holds, else ``strength``."""
        strength = self.config.section(RestrictedConfig).strength
        held = class_counts(client, self.context.classes) > 0
        self.inputs.put("factors", torch.where(held, 1.0, strength))

    def logits(self, logits: Tensor) -> Tensor:
        """Multiply the logits (batch, classes) by the factors of the classes."""
        factors: Tensor = self.inputs["factors"]
        return logits * factors.to(logits.dtype)


FEDRS = Method("FedRS", RestrictedSoftmax, sections={"fedrs": RestrictedConfig})


class CalibrationConfig(Section):
    """Settings of FedLC, which subtracts margins from logits by the client's class counts."""

    temperature: Weight = 0.1
    """Factor of the margins n^(-1/4): 0.1 in the FedDecorr authors' code."""


class CalibratedLogits(LocalMethod):
    """Local training of FedLC (Zhang et al. 2022): subtracts margins from logits, by class counts.

    The margin is τ·n^(−1/4) for a class of which the client has n samples; infinite for n = 0,
    which removes the class from the softmax. τ is ``temperature``.
    """

    def begin(self, message: Broadcast, client: Client) -> None:
        """Compute the client's margins from its number of samples of each class."""
        counts = class_counts(client, self.context.classes)
        temperature = self.config.section(CalibrationConfig).temperature
        margins = temperature * counts.clamp(min=1).pow(-0.25)
        self.inputs.put("margins", torch.where(counts > 0, margins, torch.inf))

    def logits(self, logits: Tensor) -> Tensor:
        """Subtract the margins of the classes from the logits (batch, classes)."""
        margins: Tensor = self.inputs["margins"]
        return logits - margins.to(logits.dtype)


FEDLC = Method("FedLC", CalibratedLogits, sections={"fedlc": CalibrationConfig})
