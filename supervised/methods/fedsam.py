"""FedSAM (Qu et al. 2022): sharpness-aware local training."""

from collections.abc import Callable

from torch import Tensor

from ccfcpp.core.config import PositiveNumber, Section
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method


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
        models = self.place.models
        gradients, before = models.weight_gradients, models.weights.clone()
        norms = gradients.norm(dim=1, keepdim=True)
        radius = self.place.config.section(SharpnessConfig).radius
        models.weights.add_(gradients * (radius / (norms + 1e-12)))
        backward()
        models.weights.copy_(before)
        return losses


FEDSAM = Method("FedSAM", SharpnessAware, sections={"fedsam": SharpnessConfig})
