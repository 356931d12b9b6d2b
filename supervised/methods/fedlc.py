"""FedLC, logit calibration (Zhang et al. 2022)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ccfcpp.core.config import Section, Weight
from ccfcpp.engine.client import Client
from supervised.messages import Broadcast
from supervised.methods.local import LocalMethod, class_counts
from supervised.methods.method import Method


class CalibrationConfig(Section):
    """Logit calibration, FedLC."""

    temperature: Weight = 0.1
    """Factor of the margins n^(-1/4): 0.1 in the FedDecorr authors' code."""


class CalibratedLogits(LocalMethod):
    """FedLC (Zhang et al. 2022): margins τ·n^(−1/4) by the client's number n of each class.

    A class that a client does not hold has an infinite margin: it takes no part in its softmax.
    """

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Note how many samples of each class a client has."""
        counts = class_counts(clients, self.place.classes)
        temperature = self.place.config.section(CalibrationConfig).temperature
        margins = temperature * counts.clamp(min=1).pow(-0.25)
        self._margins = torch.where(counts > 0, margins, torch.inf).unsqueeze(1)

    def logits(self, logits: Tensor) -> Tensor:
        """Subtract the margins."""
        return logits - self._margins[: len(logits)].to(logits.dtype)


FEDLC = Method("FedLC", CalibratedLogits, sections={"fedlc": CalibrationConfig})
