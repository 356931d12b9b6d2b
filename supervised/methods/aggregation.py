"""What a method does at the server: how local models become the next global one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from ccfcpp.engine.aggregation import ModelAverage
from ccfcpp.models.state import ModelState
from supervised.config import ClassifyConfig
from supervised.messages import LocalUpdate, ServerState

Known = TypeVar("Known", bound=ServerState)


class Aggregation(Generic[Known]):
    """FedAvg (McMahan et al. 2017): the mean of the local models, by their numbers of samples.

    One object serves a round; updates are added one by one and none is kept. Batch normalisation's
    running statistics are always the plain mean: a server optimizer moves parameters only.

    Args:
        state: The server's state before the round.
        trained: Names of the parameters; what else a model has are statistics.
        config: The run's configuration.
        population: Number of connected clients, whether they take part in this round or not.

    Attributes:
        of_means: Whether it needs nothing of the models but their mean by samples.
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
        """The weight of a client's parameters in the mean."""
        return update.samples

    def add(self, update: LocalUpdate) -> None:
        """Count an update in."""
        parameters = {name: update.model[name] for name in self._trained}
        statistics = {name: e for name, e in update.model.items() if name not in parameters}
        self._parameters.add(parameters, self.weight(update))
        self._statistics.add(statistics, update.samples)
        self._samples += update.samples

    def result(self) -> Known:
        """The server's next state."""
        moved = self.step(self._parameters.result())
        return replace(moved, model=moved.model | self._statistics.result())

    def step(self, mean: ModelState) -> Known:
        """The state with the next parameters, from the mean of the clients'."""
        return replace(self.state, model=mean)

    def change(self, mean: ModelState) -> ModelState:
        """Δ: how far the mean is from the parameters before the round."""
        return {name: mean[name] - entry for name, entry in self.before.items()}


def decayed(known: ModelState | None, change: ModelState, decay: float, share: float) -> ModelState:
    """Decay · known + share · change, from 0 on."""
    if known is None:
        return {name: share * entry for name, entry in change.items()}
    return {name: decay * known[name] + share * entry for name, entry in change.items()}


def squared_norm(model: ModelState) -> float:
    """‖w‖² over all entries."""
    return float(sum(entry.double().square().sum() for entry in model.values()))
