"""FedExP (Jhunjhunwala, Wang and Joshi 2023)."""

from collections.abc import Sequence
from dataclasses import replace

from ccfcpp.core.config import PositiveNumber, Section
from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation, squared_norm
from supervised.methods.method import Method


class ExtrapolationConfig(Section):
    """FedExP."""

    epsilon: PositiveNumber = 1e-3


class Extrapolated(Aggregation[ServerState]):
    """FedExP (Jhunjhunwala, Wang and Joshi 2023): a step of max(1, Σp_i‖Δ_i‖²/(2(‖Δ‖² + ε))).

    The paper proposes the mean of the last two models as the result; here it is the last one.
    """

    of_means = False

    def __init__(
        self, state: ServerState, trained: Sequence[str], config: ClassifyConfig, population: int
    ) -> None:
        super().__init__(state, trained, config, population)
        self._squares = 0.0

    def add(self, update: LocalUpdate) -> None:
        """Count an update in."""
        super().add(update)
        self._squares += update.samples * squared_norm(self.change(update.model))

    def step(self, mean: ModelState) -> ServerState:
        """Go beyond the mean."""
        change = self.change(mean)
        spread = self._squares / self._samples
        factor = max(
            1.0,
            spread
            / (2 * (squared_norm(change) + self.config.section(ExtrapolationConfig).epsilon)),
        )
        moved = {name: x + factor * change[name] for name, x in self.before.items()}
        return replace(self.state, model=moved)


FEDEXP = Method("FedExP", aggregation=Extrapolated, sections={"fedexp": ExtrapolationConfig})
