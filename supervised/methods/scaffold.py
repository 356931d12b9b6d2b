"""SCAFFOLD (Karimireddy et al. 2020): control variates at server and clients."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ccfcpp.engine.client import Client
from ccfcpp.engine.update_format import Sum, format_of
from ccfcpp.models.state import ModelState
from supervised.messages import Broadcast, LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation
from supervised.methods.local import LocalMethod
from supervised.methods.method import Method


@dataclass(frozen=True)
class ControlledState(ServerState):
    """State with the control variate c of the server, of shape (size of a model,)."""

    control: Tensor


@dataclass(frozen=True)
class ControlledBroadcast(Broadcast):
    """Message with the control variate c of the server, of shape (size of a model,)."""

    control: Tensor


@dataclass(frozen=True, kw_only=True)
class ControlledUpdate(LocalUpdate):
    """Update with the change of the client's control variate, of shape (size of a model,)."""

    control_change: Tensor


class ControlVariates(LocalMethod):
    """Local training of SCAFFOLD, option II.

    The correction −η(c − c_i) follows the optimizer's step, so that momentum does not multiply it:
    the control variates (x − y_i)/(Kη) contain that factor already.
    """

    def begin(self, message: Broadcast, client: Client) -> None:
        """Load the control variates of the server and of the client."""
        assert isinstance(message, ControlledBroadcast)
        self._start = self.network.weights.clone()
        self._server = message.control
        self._own = client.memory.get("control", torch.zeros_like(self._server))
        rate = self.config.training.learning_rate
        self.inputs.put("correction", rate * (self._server - self._own))

    def after_step(self) -> None:
        """Correct the step by the control variates."""
        self.network.weights.sub_(self.inputs["correction"])

    def finish(self, client: Client, update: LocalUpdate) -> ControlledUpdate:
        """Add c_i⁺ − c_i = (x − y_i)/(Kη) − c; 0 for a client without a step."""
        change = torch.zeros_like(self._server)
        if update.steps:
            moved = self._start - self.network.weights
            rate = self.config.training.learning_rate
            change = moved / (update.steps * rate) - self._server
        client.memory = {"control": self._own + change}
        return ControlledUpdate(**vars(update), control_change=change)


class ControlledMean(Aggregation[ControlledState]):
    """Aggregation of SCAFFOLD with a global step of 1: c moves by Σ (c_i⁺ − c_i)/N.

    Models are weighted by samples, as in all methods here; in the paper all clients count equally.
    """

    @cached_property
    def _control(self) -> Tensor:
        return self.state.control.to(torch.float64, copy=True)

    def add(self, update: LocalUpdate) -> None:
        """Add an update to the mean, and its change to the control variate."""
        assert isinstance(update, ControlledUpdate)
        super().add(update)
        self._control.add_(update.control_change / self.population)

    def step(self, mean: ModelState) -> ControlledState:
        """Return the mean and the new control variate."""
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
    update_format=lambda message: format_of({"control_change": message.control}),
    begin=ControlledState,
    broadcast=lambda state: ControlledBroadcast(state.model, state.control),
)
