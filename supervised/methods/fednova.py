"""FedNova (Wang et al. 2020)."""

from collections.abc import Sequence
from dataclasses import replace

from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation
from supervised.methods.method import Method


class Normalised(Aggregation[ServerState]):
    """FedNova (Wang et al. 2020): changes are divided by what local steps amount to.

    With p_i the shares of samples and a_i the ℓ1 norms of the clients' step weights (of SGD with
    momentum ρ and τ_i steps: (τ_i − ρ(1 − ρ^τ_i)/(1 − ρ))/(1 − ρ)) the server moves by
    (Σ p_i a_i) Σ p_i Δ_i/a_i: a mean of the models weighted by p_i/a_i, and a step to it and
    beyond.
    """

    of_means = False

    def __init__(
        self, state: ServerState, trained: Sequence[str], config: ClassifyConfig, population: int
    ) -> None:
        super().__init__(state, trained, config, population)
        self._steps = self._weights = 0.0

    def weight(self, update: LocalUpdate) -> float:
        """p_i/a_i, but for a factor; a client that made no step has no change to count."""
        if update.steps == 0:
            return 0.0
        return update.samples / effective_steps(update.steps, self.config.training.momentum)

    def add(self, update: LocalUpdate) -> None:
        """Count an update in."""
        super().add(update)
        self._weights += self.weight(update)
        momentum = self.config.training.momentum
        self._steps += update.samples * effective_steps(update.steps, momentum)

    def result(self) -> ServerState:
        """The server's next state."""
        if self._weights == 0:
            return self.state
        return super().result()

    def step(self, mean: ModelState) -> ServerState:
        """Move by the effective number of steps."""
        factor = self._steps * self._weights / self._samples**2
        change = self.change(mean)
        moved = {name: x + factor * change[name] for name, x in self.before.items()}
        return replace(self.state, model=moved)


def effective_steps(steps: int, momentum: float) -> float:
    """What a number of steps of SGD with momentum amounts to: ‖a‖₁ of FedNova."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


FEDNOVA = Method("FedNova", aggregation=Normalised)
