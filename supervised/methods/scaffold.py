"""SCAFFOLD (Karimireddy et al. 2020)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ccfcpp.engine.client import Client
from ccfcpp.engine.parts import Sum, form_of
from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import Broadcast, LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method


@dataclass(frozen=True)
class ControlledState(ServerState):
    """What the server knows.

    Attributes:
        control: Its control variate c, of shape (size of a model,).
    """

    control: Tensor


@dataclass(frozen=True)
class ControlledBroadcast(Broadcast):
    """What goes down to a client.

    Attributes:
        control: The server's control variate c, of shape (size of a model,).
    """

    control: Tensor


@dataclass(frozen=True, kw_only=True)
class ControlledUpdate(LocalUpdate):
    """What comes up after local training.

    Attributes:
        control_change: How much the client's control variate has changed, of shape (size of a
            model,).
    """

    control_change: Tensor


class ControlVariates(LocalMethod):
    """SCAFFOLD (Karimireddy et al. 2020), option II.

    Steps are corrected by −η(c − c_i) after the optimizer's, so that momentum does not multiply the
    correction: the control variates (x − y_i)/(Kη) hold its factor already.
    """

    def begin(self, message: Any, clients: Sequence[Client]) -> None:
        """Take up the server's and the clients' control variates."""
        models = self.place.models
        self._start = models.weights.clone()
        self._server: Tensor = message.control
        self._own = torch.stack(
            [c.memory.get("control", torch.zeros_like(self._server)) for c in clients]
        )
        rate = self.place.config.training.learning_rate
        self._correction = rate * (self._server - self._own)

    def after_step(self) -> None:
        """Correct the step."""
        weights = self.place.models.weights
        weights.sub_(self._correction[: len(weights)])

    def finish(self, index: int, client: Client, update: LocalUpdate) -> ControlledUpdate:
        """c_i⁺ − c_i = (x − y_i)/(Kη) − c; 0 for a client that made no step."""
        change = torch.zeros_like(self._server)
        if update.steps:
            moved = self._start[index] - self.place.models.weights[index]
            rate = self.place.config.training.learning_rate
            change = moved / (update.steps * rate) - self._server
        client.memory = {"control": self._own[index] + change}
        return ControlledUpdate(**vars(update), control_change=change)


class ControlledMean(Aggregation[ControlledState]):
    """SCAFFOLD (Karimireddy et al. 2020) with a global step of 1: c moves by Σ (c_i⁺ − c_i)/N.

    Models are averaged by samples, as everywhere here; in the paper all clients count alike.
    """

    def __init__(
        self,
        state: ControlledState,
        trained: Sequence[str],
        config: ClassifyConfig,
        population: int,
    ) -> None:
        super().__init__(state, trained, config, population)
        self._control = state.control.double()

    def add(self, update: Any) -> None:
        """Count an update in."""
        super().add(update)
        self._control = self._control + update.control_change / self.population

    def step(self, mean: ModelState) -> ControlledState:
        """Take the mean, and move the control variate."""
        control = self._control.to(self.state.control.dtype)
        return replace(self.state, model=mean, control=control)


SCAFFOLD = Method(
    "SCAFFOLD",
    ControlVariates,
    ControlledMean,
    remembers=True,
    state=ControlledState,
    message=ControlledBroadcast,
    update=ControlledUpdate,
    parts={"control_change": Sum()},
    form=lambda message: form_of({"control_change": message.control}),
    begin=ControlledState,
    broadcast=lambda state: ControlledBroadcast(state.model, state.control),
)
