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


@dataclass(frozen=True)
class Method:
    """Definition of a method of federated classification.

    Attributes:
        title: Name in tables.
        local: Class of local training at the clients.
        aggregation: Class of aggregation at the server.
        sharing: Rule for which parameters and buffers clients send.
        remembers: Whether clients keep a local state between rounds.
        personal: Whether each client predicts with its own model.
        state: Type of the server's state.
        message: Type of the server's message.
        update: Type of a client's update.
        parts: How the server may combine those fields of an update that only this method has.
        update_format: Maps the server's message to the shapes and dtypes of these fields.
        begin: Makes the first state from a model and a vector of zeros, of shape (parameters,).
        broadcast: Maps a state to the server's message.
        projection: Maps a configuration to the widths of a projection head between backbone and
            classifier; empty for none.
        sections: Sections of the configuration that only this method reads, by name.
        fixed: Settings that the method fixes, such as the value of a shared setting.
        ignores: Keys of shared sections that this method does not read.
        unused: Yields the settings without effect, given the others, and what each would need.
        check: Raises ``ValueError``, with a message of one line, if a configuration does not fit.
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
    update_format: Callable[[Any], UpdateFormat] = lambda message: {}
    begin: Callable[[ModelState, Tensor], ServerState] = lambda model, weights: ServerState(model)
    broadcast: Callable[[Any], Broadcast] = lambda state: Broadcast(state.model)
    projection: Callable[[ClassifyConfig], Sequence[int]] = lambda config: ()
    sections: Mapping[str, type[Section]] = field(default_factory=dict)
    fixed: Tree = field(default_factory=dict)
    ignores: tuple[str, ...] = ("privacy.smallest_count",)
    unused: Callable[[Any], Unused] = all_used
    check: Callable[[Any], None] = fits_always


FEDAVG = Method("FedAvg")
"""FedAvg (McMahan et al. 2017): local SGD and the mean of the models."""
