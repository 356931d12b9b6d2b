"""Methods that change the server's step length: FedExP and FedNova.

Sources: Jhunjhunwala, Wang and Joshi 2023 (FedExP); Wang et al. 2020 (FedNova).
"""

from dataclasses import replace

from ccfcpp.core.config import PositiveNumber, Section
from ccfcpp.models.state import ModelState
from supervised.messages import LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation, squared_norm
from supervised.methods.method import Method


class ExtrapolationConfig(Section):
    """Settings of FedExP, which computes the server's step length from the clients' changes."""

    epsilon: PositiveNumber = 1e-3
    """ε: a larger one makes the server's steps shorter."""


class Extrapolated(Aggregation[ServerState]):
    """Aggregation of FedExP: multiplies the mean change Δ by a step length of 1 or more.

    Jhunjhunwala, Wang and Joshi 2023: max(1, Σ p_i‖Δ_i‖² / (2(‖Δ‖² + ε))), with client i's change
    Δ_i and share of samples p_i. The paper returns the mean of the last two models; here the last.
    """

    of_means = False
    _squares = 0.0

    def add(self, update: LocalUpdate) -> None:
        """Add an update to the mean, and samples · ‖Δ_i‖² to the step length's numerator.

        Δ_i is the client's change of the parameters.
        """
        super().add(update)
        self._squares += update.samples * squared_norm(self.change(update.model))

    def step(self, mean: ModelState) -> ServerState:
        """Return the state with parameters moved by the step length times Δ, their mean change."""
        change = self.change(mean)
        spread = self._squares / self._samples
        epsilon = self.config.section(ExtrapolationConfig).epsilon
        factor = max(1.0, spread / (2 * (squared_norm(change) + epsilon)))
        moved = {name: x + factor * change[name] for name, x in self.before.items()}
        return replace(self.state, model=moved)


FEDEXP = Method("FedExP", aggregation=Extrapolated, sections={"fedexp": ExtrapolationConfig})


class Normalised(Aggregation[ServerState]):
    """Aggregation of FedNova (Wang et al. 2020): divides changes by effective numbers of steps.

    Δ_i is client i's change of the parameters, p_i its share of samples, and a_i its effective
    number of steps: for τ_i steps of SGD with momentum ρ, a_i = (τ_i − ρ(1 − ρ^τ_i)/(1 − ρ))/(1 −
    ρ). The parameters change by (Σ p_i a_i) Σ p_i Δ_i/a_i.
    """

    of_means = False
    _steps = _weights = 0.0

    def weight(self, update: LocalUpdate) -> float:
        """Return an update's weight: samples / effective number of steps; 0 without a step."""
        if update.steps == 0:
            return 0.0
        return update.samples / effective_steps(update.steps, self.config.training.momentum)

    def add(self, update: LocalUpdate) -> None:
        """Add an update to the mean, and samples · effective steps to the sum over clients."""
        super().add(update)
        self._weights += self.weight(update)
        momentum = self.config.training.momentum
        self._steps += update.samples * effective_steps(update.steps, momentum)

    def result(self) -> ServerState:
        """Return the next state of the server, the same if no client made a step."""
        if self._weights == 0:
            return self.state
        return super().result()

    def step(self, mean: ModelState) -> ServerState:
        """Return the state with parameters moved by (Σ p_i a_i) Σ p_i Δ_i/a_i, see the class."""
        factor = self._steps * self._weights / self._samples**2
        change = self.change(mean)
        moved = {name: x + factor * change[name] for name, x in self.before.items()}
        return replace(self.state, model=moved)


def effective_steps(steps: int, momentum: float) -> float:
    """Return FedNova's effective number a_i of steps of SGD with momentum, see ``Normalised``."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


FEDNOVA = Method("FedNova", aggregation=Normalised)
