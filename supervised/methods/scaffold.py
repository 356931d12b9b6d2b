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
    """Server's state with its control variate c, of shape (parameters,)."""

    control: Tensor


@dataclass(frozen=True)
class ControlledBroadcast(Broadcast):
    """Server's message with its control variate c, of shape (parameters,)."""

    control: Tensor


@dataclass(frozen=True, kw_only=True)
class ControlledUpdate(LocalUpdate):
    """Client's update with the change of its control variate c_i, of shape (parameters,)."""

    control_change: Tensor


class ControlVariates(LocalMethod):
    """Local training of SCAFFOLD (Karimireddy et al. 2020, option II): steps plus −η(c − c_i).

    c and c_i are the control variates of server and client, η is the learning rate. The correction
    is applied after the optimizer's step, not through momentum, whose factor the control variates
    (x − y_i)/(Kη) contain already: x is the global model, y_i the local one after K steps.
    """

    def begin(self, message: Broadcast, client: Client) -> None:
        """Compute the correction of each step, η(c − c_i): see the class."""
        assert isinstance(message, ControlledBroadcast)
        self._start = self.network.weights.clone()
        self._server = message.control
        self._own = client.memory.get("control", torch.zeros_like(self._server))
        rate = self.config.training.learning_rate
        self.inputs.put("correction", rate * (self._server - self._own))

    def after_step(self) -> None:
        """Subtract the correction η(c − c_i) from the weights."""
        self.network.weights.sub_(self.inputs["correction"])

    def finish(self, client: Client, update: LocalUpdate) -> ControlledUpdate:
        """Add the change of c_i, (x − y_i)/(Kη) − c or 0 without a step, to memory and update."""
        change = torch.zeros_like(self._server)
        if update.steps:
            moved = self._start - self.network.weights
            rate = self.config.training.learning_rate
            change = moved / (update.steps * rate) - self._server
        client.memory = {"control": self._own + change}
        return ControlledUpdate(**vars(update), control_change=change)


class ControlledMean(Aggregation[ControlledState]):
    """Aggregation of SCAFFOLD with a global step size of 1: c changes by the sum of changes / N.

    c is the control variate, N the number of connected clients. Models are weighted by samples;
    in the paper, all clients count equally.
    """

    @cached_property
    def _control(self) -> Tensor:
        return self.state.control.to(torch.float64, copy=True)

    def add(self, update: LocalUpdate) -> None:
        """Add an update to the mean, and its change of c_i, divided by N, to c."""
        assert isinstance(update, ControlledUpdate)
        super().add(update)
        self._control.add_(update.control_change / self.population)

    def step(self, mean: ModelState) -> ControlledState:
        """Return the state with the models' mean as model, and the new control variate c."""
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
