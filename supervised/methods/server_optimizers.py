"""Server optimizers: FedAvgM, FedAdam, FedYogi and FedAdagrad.

Sources: Hsu, Qi and Brown 2019 (FedAvgM); Reddi et al. 2021 (FedAdam, FedYogi, FedAdagrad).
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ccfcpp.core.config import BelowOne, PositiveNumber, Section, Unused, require_other
from ccfcpp.models.state import ModelState
from supervised.messages import ServerState
from supervised.methods.aggregation import Aggregation, update_momentum
from supervised.methods.method import Method


class ServerMomentumConfig(Section):
    """Settings of FedAvgM: momentum of the server, which is applied to the mean change."""

    momentum: BelowOne = 0.5
    """Momentum of the server."""
    dampening: Literal["none", "momentum"] = "momentum"
    """Dampening of the change of a round: ``none`` (Hsu et al. 2019), or ``momentum``: times 1 -
    momentum, as in the FedDecorr authors' code."""

    def unused(self) -> Unused:
        """Yield the dampening without momentum, which is by a factor of 1."""
        if self.momentum == 0:
            yield "fedavgm.dampening", require_other("fedavgm.momentum", 0)


@dataclass(frozen=True)
class MomentumState(ServerState):
    """Server's state with the momentum v of each parameter; None before the first round."""

    momentum: ModelState | None = None


class ServerMomentum(Aggregation[MomentumState]):
    """Aggregation of FedAvgM (Hsu, Qi and Brown 2019): v ← ρv + Δ, x ← x + v.

    x are the parameters, Δ is their mean change, v the momentum and ρ its decay. With ``dampening``
    it is v ← ρv + (1 − ρ)Δ, as in FedDecorr's public code.
    """

    def step(self, mean: ModelState) -> MomentumState:
        """Return the state with a new momentum v, and the previous parameters moved by v."""
        settings = self.config.section(ServerMomentumConfig)
        share = 1.0 if settings.dampening == "none" else 1 - settings.momentum
        velocity = update_momentum(self.state.momentum, self.change(mean), settings.momentum, share)
        moved = {name: entry + velocity[name] for name, entry in self.before.items()}
        return replace(self.state, model=moved, momentum=velocity)


FEDAVGM = Method(
    "FedAvgM",
    aggregation=ServerMomentum,
    state=MomentumState,
    begin=lambda model, weights: MomentumState(model),
    sections={"fedavgm": ServerMomentumConfig},
)


class AdaptiveConfig(Section):
    """Settings of FedAdagrad, which scales the server's steps by second moments of changes."""

    learning_rate: PositiveNumber = 0.01
    """Learning rate of the server."""
    beta1: BelowOne = 0.9
    """β₁: decay of the first moments."""
    tau: PositiveNumber = 1e-3
    """Degree of adaptivity; the second moments start at τ²."""


class DecayingConfig(AdaptiveConfig):
    """Settings of FedAdam and FedYogi, whose second moments of changes decay."""

    beta2: BelowOne = 0.99
    """β₂: decay of the second moments."""


@dataclass(frozen=True)
class AdaptiveState(MomentumState):
    """Server's state with moments of each parameter's changes: m, as ``momentum``, and second v."""

    second_moment: ModelState | None = None


class AdaptiveServer(Aggregation[AdaptiveState]):
    """Aggregation of FedAdam (Reddi et al. 2021, Algorithm 2): x ← x + η m/(√v + τ).

    x are the parameters, Δ is their mean change, m ← β₁m + (1 − β₁)Δ its first moment, from 0 on,
    v ← β₂v + (1 − β₂)Δ² its second one, from τ² on. η, β₁, β₂ and τ are settings.
    """

    def step(self, mean: ModelState) -> AdaptiveState:
        """Return the state with updated moments, and parameters moved by them."""
        settings = self.config.section(AdaptiveConfig)
        change = self.change(mean)
        first = update_momentum(self.state.momentum, change, settings.beta1, 1 - settings.beta1)
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
        """Return the next second moment of a parameter; ``square`` is Δ²."""
        return known.lerp(square, 1 - self.config.section(DecayingConfig).beta2)


class YogiServer(AdaptiveServer):
    """FedYogi (Reddi et al. 2021): FedAdam with v ← v − (1 − β₂)Δ² sign(v − Δ²)."""

    def second(self, known: Tensor, square: Tensor) -> Tensor:
        """Return the next second moment of a parameter; ``square`` is Δ²."""
        share = 1 - self.config.section(DecayingConfig).beta2
        return known - share * square * (known - square).sign()


class AdagradServer(AdaptiveServer):
    """FedAdagrad (Reddi et al. 2021): FedAdam with the second moment v ← v + Δ²."""

    def second(self, known: Tensor, square: Tensor) -> Tensor:
        """Return the next second moment of a parameter; ``square`` is Δ²."""
        return known + square


def _method(title: str, aggregation: type[AdaptiveServer], section: type[AdaptiveConfig]) -> Method:
    return Method(
        title,
        aggregation=aggregation,
        state=AdaptiveState,
        begin=lambda model, weights: AdaptiveState(model),
        sections={"adaptive": section},
    )


FEDADAM = _method("FedAdam", AdaptiveServer, DecayingConfig)
FEDYOGI = _method("FedYogi", YogiServer, DecayingConfig)
FEDADAGRAD = _method("FedAdagrad", AdagradServer, AdaptiveConfig)
