"""FedLC (Zhang et al. 2022): calibration of logits by class frequency."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccfcpp.core.config import Section, Weight
from ccfcpp.engine.client import Client
from supervised.messages import Broadcast
from supervised.methods.local import LocalMethod, class_counts
from supervised.methods.method import Method


class CalibrationConfig(Section):
    """Calibration of the logits of FedLC."""

    temperature: Weight = 0.1
    """Factor of the margins n^(-1/4): 0.1 in the FedDecorr authors' code."""


class CalibratedLogits(LocalMethod):
    """FedLC: margins τ·n^(−1/4), where n is the client's number of samples of each class.

    A class that a client does not hold has an infinite margin, which removes it from the softmax.
    """

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Compute the margins of each client."""
        counts = class_counts(clients, self.place.classes)
        temperature = self.place.config.section(CalibrationConfig).temperature
        margins = temperature * counts.clamp(min=1).pow(-0.25)
        self._margins = torch.where(counts > 0, margins, torch.inf).unsqueeze(1)

    def logits(self, logits: Tensor) -> Tensor:
        """Subtract the margins from the logits."""
        return logits - self._margins[: len(logits)].to(logits.dtype)


FEDLC = Method("FedLC", CalibratedLogits, sections={"fedlc": CalibrationConfig})
