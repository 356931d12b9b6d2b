"""FedExP (Jhunjhunwala, Wang and Joshi 2023): an adaptive step length at the server."""

from dataclasses import replace

from ccfcpp.core.config import PositiveNumber, Section
from ccfcpp.models.state import ModelState
from supervised.messages import LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation, squared_norm
from supervised.methods.method import Method


class ExtrapolationConfig(Section):
    """Step length of FedExP."""

    epsilon: PositiveNumber = 1e-3


class Extrapolated(Aggregation[ServerState]):
    """FedExP: the step length is max(1, Σp_i‖Δ_i‖²/(2(‖Δ‖² + ε))).

    The paper proposes the mean of the last two models as the result; here it is the last model.
    """

    of_means = False
    _squares = 0.0

    def add(self, update: LocalUpdate) -> None:
        """Add an update to the mean, and its squared norm to the numerator."""
        super().add(update)
        self._squares += update.samples * squared_norm(self.change(update.model))

    def step(self, mean: ModelState) -> ServerState:
        """Move the parameters by the step length times Δ."""
        change = self.change(mean)
        spread = self._squares / self._samples
        epsilon = self.config.section(ExtrapolationConfig).epsilon
        factor = max(1.0, spread / (2 * (squared_norm(change) + epsilon)))
        moved = {name: x + factor * change[name] for name, x in self.before.items()}
        return replace(self.state, model=moved)


FEDEXP = Method("FedExP", aggregation=Extrapolated, sections={"fedexp": ExtrapolationConfig})
