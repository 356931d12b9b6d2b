"""Definition of a method of federated classification."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ccfcpp.core.config import Section, Tree, Unused, all_used, fits_always
from ccfcpp.engine.update_format import Part, UpdateFormat
from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import Broadcast, LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation
from supervised.methods.local import LocalMethod
from supervised.sharing import Sharing


def _initial_state(model: ModelState, weights: Tensor) -> ServerState:
    return ServerState(model)


def _no_projection(config: ClassifyConfig) -> Sequence[int]:
    return ()


def _no_parts(message: Any) -> UpdateFormat:
    return {}


def _broadcast_model(state: ServerState) -> Broadcast:
    return Broadcast(state.model)


@dataclass(frozen=True)
class Method:
    """Everything that defines a method of federated classification.

    Attributes:
        title: Name in tables.
        local: Local training at the clients.
        aggregation: Aggregation at the server.
        sharing: Rule for which parameters and buffers clients send.
        remembers: Whether clients keep a local state from round to round.
        personal: Whether each client predicts with its own model.
        state: Type of the server's state.
        message: Type of the server's message.
        update: Type of a client's update.
        parts: Meaning of the parts of an update that only this method has, by field.
        update_format: Computes the shapes and dtypes of these parts from the server's message.
        begin: Makes the first state from a model and a flat vector of zeros of the weights' size.
        broadcast: Makes the message of a state.
        projection: Maps a configuration to the widths of a projection head between backbone and
            classifier; empty for none.
        sections: Sections of the configuration that only this method reads, by name.
        fixed: Settings that the method's name implies.
        ignores: Keys that it never reads, of sections that it shares with others.
        unused: Yields the settings that have no effect besides others, and what these need.
        check: Raises ``ValueError`` with one line if a configuration does not fit it.
    """

    title: str
    local: type[LocalMethod] = LocalMethod
    aggregation: type[Aggregation[Any]] = Aggregation
    sharing: type[Sharing] = Sharing
    remembers: bool = False
    personal: bool = False
    state: type[ServerState] = ServerState
    message: type[Broadcast] = Broadcast
    update: type[LocalUpdate] = LocalUpdate
    parts: Mapping[str, Part] = field(default_factory=dict)
    update_format: Callable[[Any], UpdateFormat] = _no_parts
    begin: Callable[[ModelState, Tensor], ServerState] = _initial_state
    broadcast: Callable[[Any], Broadcast] = _broadcast_model
    projection: Callable[[ClassifyConfig], Sequence[int]] = _no_projection
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    fixed: Tree = field(default_factory=dict)
    ignores: tuple[str, ...] = ("privacy.smallest_count",)
    unused: Callable[[Any], Unused] = all_used
    check: Callable[[Any], None] = fits_always


FEDAVG = Method("FedAvg")
"""FedAvg (McMahan et al. 2017): local SGD and the mean of the models."""
