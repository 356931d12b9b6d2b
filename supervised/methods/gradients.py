"""Changes of the local gradients: FedProx and FedSAM.

Sources: Li et al. 2020 (FedProx); Qu et al. 2022 (FedSAM).
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from ccfcpp.core.config import PositiveNumber, Section, Weight
from ccfcpp.engine.client import Client
from supervised.messages import Broadcast
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method


class ProximalConfig(Section):
    """Proximal term of FedProx."""

    mu: Weight = 1e-3


class Proximal(LocalMethod):
    """FedProx: μ/2 ‖w − w_global‖² is added to the loss.

    The FedDecorr authors' public code compares the current parameters with themselves, so that the
    term is always 0 there, and FedProx is FedAvg.
    """

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Store the weights at the start."""
        self._start = self.models.weights.clone()

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Add the term's gradient μ(w − w_global) in closed form."""
        losses = backward()
        weights = self.models.weights
        drift = weights - self._start[: len(weights)]
        self.models.weight_gradients.add_(drift, alpha=self.config.section(ProximalConfig).mu)
        return losses


FEDPROX = Method("FedProx", Proximal, sections={"fedprox": ProximalConfig})


class SharpnessConfig(Section):
    """Sharpness-aware steps of FedSAM."""

    radius: PositiveNumber = 0.05


class SharpnessAware(LocalMethod):
    """FedSAM: each step takes the gradient at the worst point within a radius.

    Both passes update the running statistics, as in the authors' code.
    """

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Compute the gradient at w + ρ g/‖g‖, with each client's own g."""
        losses = backward()
        models = self.models
        gradients, before = models.weight_gradients, models.weights.clone()
        norms = gradients.norm(dim=1, keepdim=True)
        radius = self.config.section(SharpnessConfig).radius
        models.weights.add_(gradients * (radius / (norms + 1e-12)))
        backward()
        models.weights.copy_(before)
        return losses


FEDSAM = Method("FedSAM", SharpnessAware, sections={"fedsam": SharpnessConfig})
