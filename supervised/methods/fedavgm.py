"""FedAvgM (Hsu, Qi and Brown 2019): momentum at the server."""

from dataclasses import dataclass, replace
from typing import Literal

from ccfcpp.core.config import BelowOne, Section
from ccfcpp.models.state import ModelState
from supervised.messages import ServerState
from supervised.methods.aggregation import Aggregation, decayed
from supervised.methods.method import Method


class ServerMomentumConfig(Section):
    """Server momentum of FedAvgM."""

    momentum: BelowOne = 0.5
    dampening: Literal["none", "momentum"] = "momentum"
    """Of the change of a round: ``none`` (Hsu et al. 2019), or ``momentum``: times 1 - momentum,
    as in the FedDecorr authors' code."""


@dataclass(frozen=True)
class MomentumState(ServerState):
    """State of the server.

    Attributes:
        momentum: v, by parameter; None before the first round.
    """

    momentum: ModelState | None = None


class ServerMomentum(Aggregation[MomentumState]):
    """FedAvgM: v ← ρv + Δ, x ← x + v.

    With ``dampening`` it is v ← ρv + (1 − ρ)Δ, as in the FedDecorr authors' code.
    """

    def step(self, mean: ModelState) -> MomentumState:
        """Move the parameters by the momentum."""
        settings = self.config.section(ServerMomentumConfig)
        share = 1.0 if settings.dampening == "none" else 1 - settings.momentum
        velocity = decayed(self.state.momentum, self.change(mean), settings.momentum, share)
        moved = {name: entry + velocity[name] for name, entry in self.before.items()}
        return replace(self.state, model=moved, momentum=velocity)


FEDAVGM = Method(
    "FedAvgM",
    aggregation=ServerMomentum,
    state=MomentumState,
    begin=lambda model, weights: MomentumState(model),
    sections={"fedavgm": ServerMomentumConfig},
)
