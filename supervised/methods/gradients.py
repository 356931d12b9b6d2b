"""Methods that change local gradients: FedProx and FedSAM.

Sources: Li et al. 2020 (FedProx); Qu et al. 2022 (FedSAM).
"""

from collections.abc import Callable

from torch import Tensor

from ccfcpp.core.config import PositiveNumber, Section, Weight
from ccfcpp.engine.client import Client
from supervised.messages import Broadcast
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method


class ProximalConfig(Section):
    """Settings of FedProx's proximal term, μ/2 ‖w − w_global‖² in the loss."""

    mu: Weight = 1e-3
    """μ: weight of the distance from the global model."""


class Proximal(LocalMethod):
    """Local training of FedProx (Li et al. 2020): adds μ/2 ‖w − w_global‖² to the loss.

    In FedDecorr's public code the term is always 0, since it compares the current parameters with
    themselves: FedProx is FedAvg there.
    """

    def begin(self, message: Broadcast, client: Client) -> None:
        """Store the global weights, to measure the distance from them."""
        self.inputs.put("start", self.network.weights.clone())

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Compute gradients, add the term's, μ(w − w_global); return the loss without the term."""
        loss = backward()
        drift = self.network.weights - self.inputs["start"]
        self.network.gradients.add_(drift, alpha=self.config.section(ProximalConfig).mu)
        return loss


FEDPROX = Method("FedProx", Proximal, sections={"fedprox": ProximalConfig})


class SharpnessConfig(Section):
    """Settings of FedSAM, which takes gradients at the worst point within a radius."""

    radius: PositiveNumber = 0.05
    """Radius within which the worst point is taken."""


class SharpnessAware(LocalMethod):
    """Local training of FedSAM (Qu et al. 2022): gradients at the worst point within a radius ρ.

    Both passes of a step update the running statistics, as in the authors' code.
    """

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Compute the gradients at w + ρ g/‖g‖, g being those at the weights w; return w's loss."""
        loss = backward()
        weights, gradients = self.network.weights, self.network.gradients
        before = weights.clone()
        radius = self.config.section(SharpnessConfig).radius
        weights.add_(gradients * (radius / (gradients.norm() + 1e-12)))
        backward()
        weights.copy_(before)
        return loss


FEDSAM = Method("FedSAM", SharpnessAware, sections={"fedsam": SharpnessConfig})
