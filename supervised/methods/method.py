"""A method of federated classification: all that has to be said to add one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ccfcpp.core.config import Section, Tree, fits_always
from ccfcpp.engine.parts import Form, Part
from ccfcpp.models.state import ModelState
from supervised.messages import Broadcast, LocalUpdate, ServerState
from supervised.methods.aggregation import Aggregation
from supervised.methods.local import LocalMethod
from supervised.sharing import Sharing


def _model_alone(model: ModelState, weights: Tensor) -> ServerState:
    return ServerState(model)


def _no_projection(config: Any) -> Sequence[int]:
    return ()


def _no_more(message: Any) -> Form:
    return {}


def _model_of(state: Any) -> Broadcast:
    return Broadcast(state.model)


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        title: What tables call it.
        local: What it adds to local training.
        aggregation: What it does at the server.
        sharing: Which entries of a model travel.
        remembers: Whether clients keep something from round to round.
        personal: Whether each client has a model of its own to predict with.
        state: Type of what the server knows.
        message: Type of what goes down.
        update: Type of what comes up.
        parts: What parts of an update mean that are this method's own.
        form: The form of these parts, from what went down.
        begin: The first state, from a model and a flat vector of zeros of the weights' shape.
        broadcast: What goes down, from a state.
        projection: From a configuration to the widths of a projection head between the backbone
            and the classifier; empty for none.
        sections: The sections of the configuration that are its own, by name.
        fixed: Settings that it brings where it is named.
        check: Raises ``ValueError`` with one line where a configuration does not fit it.
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
    form: Callable[[Any], Form] = _no_more
    begin: Callable[[ModelState, Tensor], ServerState] = _model_alone
    broadcast: Callable[[Any], Broadcast] = _model_of
    projection: Callable[[Any], Sequence[int]] = _no_projection
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    fixed: Tree = field(default_factory=dict)
    check: Callable[[Any], None] = fits_always
