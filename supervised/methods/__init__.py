"""The methods: what each adds to local training, and what it does at the server."""

from dataclasses import dataclass

from supervised.config import MethodName
from supervised.methods.aggregation import (
    AdagradServer,
    AdaptiveServer,
    Aggregation,
    ControlledMean,
    Extrapolated,
    Normalised,
    ServerMomentum,
    YogiServer,
)
from supervised.methods.local import (
    CalibratedLogits,
    ControlVariates,
    LocalMethod,
    ModelContrast,
    PersonalNormalisation,
    Proximal,
    RestrictedSoftmax,
    SharpnessAware,
)


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes:
        title: What tables call it.
        local: What it adds to local training.
        aggregation: What it does at the server.
        remembers: Whether clients keep something from round to round.
        controlled: Whether there are control variates.
        personal: Whether each client has a model of its own to predict with.
    """

    title: str
    local: type[LocalMethod] = LocalMethod
    aggregation: type[Aggregation] = Aggregation
    remembers: bool = False
    controlled: bool = False
    personal: bool = False


METHODS: dict[MethodName, Method] = {
    "fedavg": Method("FedAvg"),
    "fedprox": Method("FedProx", Proximal),
    "fedavgm": Method("FedAvgM", aggregation=ServerMomentum),
    "moon": Method("MOON", ModelContrast, remembers=True),
    "scaffold": Method(
        "SCAFFOLD", ControlVariates, ControlledMean, remembers=True, controlled=True
    ),
    "fednova": Method("FedNova", aggregation=Normalised),
    "fedbn": Method("FedBN", PersonalNormalisation, remembers=True, personal=True),
    "fedadam": Method("FedAdam", aggregation=AdaptiveServer),
    "fedyogi": Method("FedYogi", aggregation=YogiServer),
    "fedadagrad": Method("FedAdagrad", aggregation=AdagradServer),
    "fedrs": Method("FedRS", RestrictedSoftmax),
    "fedlc": Method("FedLC", CalibratedLogits),
    "fedsam": Method("FedSAM", SharpnessAware),
    "fedexp": Method("FedExP", aggregation=Extrapolated),
}
"""All methods by name, in the order of tables."""
