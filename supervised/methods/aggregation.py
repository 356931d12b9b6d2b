"""Aggregation of local models to the next global model, at the server."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import LocalUpdate, ServerState

Known = TypeVar("Known", bound=ServerState)


class Aggregation(Generic[Known]):
    """Aggregation of one round by FedAvg (McMahan et al. 2017): sample-weighted mean of the models.

    Base class of all aggregations. Updates are added one by one and are not stored. The running
    statistics of batch normalisation are always averaged; server optimizers change parameters only.

    Args:
        state: State of the server before the round.
        trained: Names of the parameters; all other tensors of a model are running statistics.
        config: Configuration of the run.
        population: Number of connected clients, including those not drawn for this round.

    Attributes:
        of_means: Whether the result depends on the models through their sample-weighted mean only.
    """

    of_means = True

    def __init__(
        self, state: Known, trained: Sequence[str], config: ClassifyConfig, population: int
    ) -> None:
        self.state = state
        self.config = config
        self.population = population
        self._trained = [name for name in trained if name in state.model]
        self._parameters, self._statistics = ModelAverage(), ModelAverage()
        self._samples = 0.0

    @property
    def before(self) -> ModelState:
        """The global parameters before the round."""
        return {name: self.state.model[name] for name in self._trained}

    def weight(self, update: LocalUpdate) -> float:
        """Return the weight of a client's parameters in the mean of ``result``."""
        return update.samples

    def add(self, update: LocalUpdate) -> None:
        """Add a client's update to the weighted means of parameters and running statistics."""
        parameters = {name: update.model[name] for name in self._trained}
        statistics = {name: e for name, e in update.model.items() if name not in parameters}
        self._parameters.add(parameters, self.weight(update))
        self._statistics.add(statistics, update.samples)
        self._samples += update.samples

    def result(self) -> Known:
        """Return the server's next state, from the means of all added updates."""
        moved = self.step(self._parameters.result())
        return replace(moved, model=moved.model | self._statistics.result())

    def step(self, mean: ModelState) -> Known:
        """Return the next state from the mean of the clients' parameters; here it has the mean."""
        return replace(self.state, model=mean)

    def change(self, mean: ModelState) -> ModelState:
        """Return Δ: ``mean`` minus the parameters before the round."""
        return {name: mean[name] - entry for name, entry in self.before.items()}


def update_momentum(
    known: ModelState | None, change: ModelState, decay: float, share: float
) -> ModelState:
    """Return decay · known + share · change for each parameter; ``known`` (momentum) None is 0."""
    if known is None:
        return {name: share * entry for name, entry in change.items()}
    return {name: decay * known[name] + share * entry for name, entry in change.items()}


def squared_norm(model: ModelState) -> float:
    """Return the squared Euclidean norm ‖w‖² over all parameters."""
    return float(sum(entry.double().square().sum() for entry in model.values()))
