"""FedAdam, FedYogi and FedAdagrad (Reddi et al. 2021)."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor

from ccfcpp.core.conditions import When
from ccfcpp.core.config import BelowOne, PositiveNumber, Section
from ccfcpp.models.state import ModelState
from supervised.messages import ServerState
from supervised.methods.aggregation import Aggregation, decayed
from supervised.methods.method import Method


class AdaptiveConfig(Section):
    """FedAdam, FedYogi and FedAdagrad."""

    learning_rate: PositiveNumber = 0.01
    beta1: BelowOne = 0.9
    beta2: Annotated[BelowOne, When("method", "fedadam", "fedyogi")] = 0.99
    tau: PositiveNumber = 1e-3
    """Degree of adaptivity; the second moments start at τ²."""


@dataclass(frozen=True)
class AdaptiveState(ServerState):
    """What the server knows.

    Attributes:
        momentum: First moments m, by parameter; None before the first round.
        second_moment: Second moments v, by parameter; None before the first round.
    """

    momentum: ModelState | None = None
    second_moment: ModelState | None = None


class AdaptiveServer(Aggregation[AdaptiveState]):
    """FedAdam (Reddi et al. 2021, Algorithm 2): x ← x + η m/(√v + τ), v a decayed mean of Δ².

    The first moment is m ← β₁m + (1 − β₁)Δ; second moments start at τ².
    """

    def step(self, mean: ModelState) -> AdaptiveState:
        """Move by the moments."""
        settings = self.config.section(AdaptiveConfig)
        change = self.change(mean)
        first = decayed(self.state.momentum, change, settings.beta1, 1 - settings.beta1)
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
        return known.lerp(square, 1 - self.config.section(AdaptiveConfig).beta2)


class YogiServer(AdaptiveServer):
    """FedYogi (Reddi et al. 2021): v ← v − (1 − β₂)Δ² sign(v − Δ²)."""

    def second(self, known: Tensor, square: Tensor) -> Tensor:
        """The next second moment."""
        return (
            known
            - (1 - self.config.section(AdaptiveConfig).beta2) * square * (known - square).sign()
        )


class AdagradServer(AdaptiveServer):
    """FedAdagrad (Reddi et al. 2021): v ← v + Δ²."""

    def second(self, known: Tensor, square: Tensor) -> Tensor:
        """The next second moment."""
        return known + square


def _method(title: str, aggregation: type[AdaptiveServer]) -> Method:
    return Method(
        title,
        aggregation=aggregation,
        state=AdaptiveState,
        begin=lambda model, weights: AdaptiveState(model),
        sections={"adaptive": AdaptiveConfig},
    )


FEDADAM = _method("FedAdam", AdaptiveServer)
FEDYOGI = _method("FedYogi", YogiServer)
FEDADAGRAD = _method("FedAdagrad", AdagradServer)
