"""What methods do at the server: how local models become the next global one."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.models.stack.layout import ModelState
from supervised.config import ClassifyConfig
from supervised.exchange import LocalUpdate, ServerState


class Aggregation:
    """FedAvg (McMahan et al. 2017): the mean of the local models, by their numbers of samples.

    One object serves a round; updates are added one by one and none is kept. Batch normalisation's
    running statistics are always the plain mean: a server optimizer moves parameters only.

    Args:
        state: The server's state before the round.
        trained: Names of the parameters; what else a model has are statistics.
        config: The run's configuration.
        population: Number of connected clients, whether they take part in this round or not.
    """

    def __init__(
        self, state: ServerState, trained: Sequence[str], config: ClassifyConfig, population: int
    ) -> None:
        self.state = state
        self.config = config
        self.population = population
        self._trained = [name for name in trained if name in state.model]
        self._parameters, self._statistics = ModelAverage(), ModelAverage()
        self._samples = 0.0

    @property
    def before(self) -> ModelState:
        """The global parameters before the round."""
        return {name: self.state.model[name] for name in self._trained}

    def weight(self, update: LocalUpdate) -> float:
        """The weight of a client's parameters in the mean."""
        return update.samples

    def add(self, update: LocalUpdate) -> None:
        """Count an update in."""
        parameters = {name: update.model[name] for name in self._trained}
        statistics = {name: e for name, e in update.model.items() if name not in parameters}
        self._parameters.add(parameters, self.weight(update))
        self._statistics.add(statistics, update.samples)
        self._samples += update.samples

    def result(self) -> ServerState:
        """The server's next state."""
        moved = self.step(self._parameters.result())
        return replace(moved, model=moved.model | self._statistics.result())

    def step(self, mean: ModelState) -> ServerState:
        """The state with the next parameters, from the mean of the clients'."""
        return replace(self.state, model=mean)

    def change(self, mean: ModelState) -> ModelState:
        """Δ: how far the mean is from the parameters before the round."""
        return {name: mean[name] - entry for name, entry in self.before.items()}


class ServerMomentum(Aggregation):
    """FedAvgM (Hsu, Qi and Brown 2019): v ← ρv + Δ, x ← x + v.

    The FedDecorr authors' code has v ← ρv + (1 − ρ)Δ, which ``dampening`` chooses.
    """

    def step(self, mean: ModelState) -> ServerState:
        """Move by the momentum."""
        settings = self.config.fedavgm
        share = 1.0 if settings.dampening == "none" else 1 - settings.momentum
        velocity = _decayed(self.state.momentum, self.change(mean), settings.momentum, share)
        moved = {name: entry + velocity[name] for name, entry in self.before.items()}
        return replace(self.state, model=moved, momentum=velocity)


class AdaptiveServer(Aggregation):
    """FedAdam (Reddi et al. 2021, Algorithm 2): x ← x + η m/(√v + τ), v a decayed mean of Δ².

    The first moment is m ← β₁m + (1 − β₁)Δ; second moments start at τ².
    """

    def step(self, mean: ModelState) -> ServerState:
        """Move by the moments."""
        settings = self.config.adaptive
        change = self.change(mean)
        first = _decayed(self.state.momentum, change, settings.beta1, 1 - settings.beta1)
        known = self.state.second_moment or {
            name: torch.full_like(entry, settings.tau**2) for name, entry in change.items()
        }
        second = {name: self.second(known[name], change[name].square()) for name in change}
        moved = {
            name: entry
            + settings.learning_rate * first[name] / (second[name].sqrt() + settings.tau)
            for name, entry in self.before.items()
        }
        return replace(self.state, model=moved, momentum=first, second_moment=second)

    def second(self, known: Tensor, square: Tensor) -> Tensor:
        """The next second moment, from the last one and Δ²."""
        return known.lerp(square, 1 - self.config.adaptive.beta2)


class YogiServer(AdaptiveServer):
    """FedYogi (Reddi et al. 2021): v ← v − (1 − β₂)Δ² sign(v − Δ²)."""

    def second(self, known: Tensor, square: Tensor) -> Tensor:
        """The next second moment."""
        return known - (1 - self.config.adaptive.beta2) * square * (known - square).sign()


class AdagradServer(AdaptiveServer):
    """FedAdagrad (Reddi et al. 2021): v ← v + Δ²."""

    def second(self, known: Tensor, square: Tensor) -> Tensor:
        """The next second moment."""
        return known + square


class Normalised(Aggregation):
    """FedNova (Wang et al. 2020): changes are divided by what local steps amount to.

    With p_i the shares of samples and a_i the ℓ1 norms of the clients' step weights (of SGD with
    momentum ρ and τ_i steps: (τ_i − ρ(1 − ρ^τ_i)/(1 − ρ))/(1 − ρ)) the server moves by
    (Σ p_i a_i) Σ p_i Δ_i/a_i: a mean of the models weighted by p_i/a_i, and a step to it and
    beyond.
    """

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


class ControlledMean(Aggregation):
    """SCAFFOLD (Karimireddy et al. 2020) with a global step of 1: c moves by Σ (c_i⁺ − c_i)/N.

    Models are averaged by samples, as everywhere here; in the paper all clients count alike.
    """

    def __init__(
        self, state: ServerState, trained: Sequence[str], config: ClassifyConfig, population: int
    ) -> None:
        super().__init__(state, trained, config, population)
        assert state.control is not None
        self._control = state.control.double()

    def add(self, update: LocalUpdate) -> None:
        """Count an update in."""
        super().add(update)
        assert update.control_change is not None
        self._control = self._control + update.control_change / self.population

    def step(self, mean: ModelState) -> ServerState:
        """Take the mean, and move the control variate."""
        assert self.state.control is not None
        control = self._control.to(self.state.control.dtype)
        return replace(self.state, model=mean, control=control)


class Extrapolated(Aggregation):
    """FedExP (Jhunjhunwala, Wang and Joshi 2023): a step of max(1, Σp_i‖Δ_i‖²/(2(‖Δ‖² + ε))).

    The paper proposes the mean of the last two models as the result; here it is the last one.
    """

    def __init__(
        self, state: ServerState, trained: Sequence[str], config: ClassifyConfig, population: int
    ) -> None:
        super().__init__(state, trained, config, population)
        self._squares = 0.0

    def add(self, update: LocalUpdate) -> None:
        """Count an update in."""
        super().add(update)
        self._squares += update.samples * _squared_norm(self.change(update.model))

    def step(self, mean: ModelState) -> ServerState:
        """Go beyond the mean."""
        change = self.change(mean)
        spread = self._squares / self._samples
        factor = max(1.0, spread / (2 * (_squared_norm(change) + self.config.fedexp.epsilon)))
        moved = {name: x + factor * change[name] for name, x in self.before.items()}
        return replace(self.state, model=moved)


def effective_steps(steps: int, momentum: float) -> float:
    """What a number of steps of SGD with momentum amounts to: ‖a‖₁ of FedNova."""
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def _decayed(
    known: ModelState | None, change: ModelState, decay: float, share: float
) -> ModelState:
    """Decay · known + share · change, from 0 on."""
    if known is None:
        return {name: share * entry for name, entry in change.items()}
    return {name: decay * known[name] + share * entry for name, entry in change.items()}


def _squared_norm(model: ModelState) -> float:
    return float(sum(entry.double().square().sum() for entry in model.values()))
