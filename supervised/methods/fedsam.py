"""FedSAM (Qu et al. 2022)."""

from collections.abc import Callable

from torch import Tensor

from ccfcpp.core.config import PositiveNumber, Section
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method


class SharpnessConfig(Section):
    """FedSAM."""

    radius: PositiveNumber = 0.05


class SharpnessAware(LocalMethod):
    """FedSAM (Qu et al. 2022): the gradient at the worst point within a radius.

    Both passes move the running statistics, as in the authors' code.
    """

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Take the gradient at w + ρ g/‖g‖, with each client's own g."""
        losses = backward()
        models = self.place.models
        gradients, before = models.weight_gradients, models.weights.clone()
        norms = gradients.norm(dim=1, keepdim=True)
        models.weights.add_(
            gradients * (self.place.config.section(SharpnessConfig).radius / (norms + 1e-12))
        )
        backward()
        models.weights.copy_(before)
        return losses


FEDSAM = Method("FedSAM", SharpnessAware, sections={"fedsam": SharpnessConfig})
