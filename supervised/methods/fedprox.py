"""FedProx (Li et al. 2020)."""

from collections.abc import Callable, Sequence

from torch import Tensor

from ccfcpp.core.config import Section, Weight
from ccfcpp.engine.client import Client
from supervised.messages import Broadcast
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method


class ProximalConfig(Section):
    """FedProx."""

    mu: Weight = 1e-3


class Proximal(LocalMethod):
    """FedProx (Li et al. 2020): μ/2 ‖w − w_global‖² is added to the loss.

    The FedDecorr authors' public code compares the live parameters with themselves: there the term
    is always 0, and FedProx is FedAvg.
    """

    def begin(self, message: Broadcast, clients: Sequence[Client]) -> None:
        """Note where the models start."""
        self._start = self.place.models.weights.clone()

    def descend(self, backward: Callable[[], Tensor]) -> Tensor:
        """Add the term's gradient μ(w − w_global), without any graph."""
        losses = backward()
        models = self.place.models
        drift = models.weights - self._start[: len(models.weights)]
        models.weight_gradients.add_(drift, alpha=self.place.config.section(ProximalConfig).mu)
        return losses


FEDPROX = Method("FedProx", Proximal, sections={"fedprox": ProximalConfig})
