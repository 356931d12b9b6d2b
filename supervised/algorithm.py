"""Federated classification: rounds of local training and aggregation, as a method has them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Exchange, Figures
from ccfcpp.engine.client import Client
from ccfcpp.engine.federation import check_same_shapes
from ccfcpp.models.initialisation import build
from supervised.config import ClassifyConfig
from supervised.exchange import Broadcast, LocalUpdate, ServerState
from supervised.local_training import LocalTrainer
from supervised.methods import METHODS
from supervised.networks import Classifier


@dataclass(frozen=True)
class TrainingExchange:
    """The exchange of a round: the model goes down, clients train, the server aggregates."""

    trainer: LocalTrainer
    population: int
    name: str = "training"
    travels = True

    @property
    def cohort(self) -> int:
        """As many clients as the trainer takes at a time."""
        return self.trainer.cohort

    @property
    def uses_memory(self) -> bool:
        """Whether the method has clients remember something."""
        return METHODS[self.trainer.config.method].remembers

    def broadcast(self, state: ServerState) -> Broadcast:
        """The global model, and the control variate where there is one."""
        return Broadcast(state.model, state.control)

    def local_updates(
        self, message: Broadcast, clients: Sequence[Client], randomness: Randomness
    ) -> list[LocalUpdate]:
        """Train a cohort."""
        return self.trainer.train(message, clients, randomness)

    def check(self, message: Broadcast, update: LocalUpdate) -> None:
        """Refuse a model or a control variate of other shapes."""
        check_same_shapes(message.model, update.model, "model entry")
        if message.control is not None:
            change = {} if update.control_change is None else {"control": update.control_change}
            check_same_shapes({"control": message.control}, change, "change of")

    def aggregate(
        self, state: ServerState, updates: Iterable[LocalUpdate], randomness: Randomness
    ) -> tuple[ServerState, Figures]:
        """The method's aggregation, and the mean loss by samples."""
        config = self.trainer.config
        names = self.trainer.models.trained_names
        aggregation = METHODS[config.method].aggregation(state, names, config, self.population)
        loss, trained = 0.0, 0
        for update in updates:
            with section("aggregation"):
                aggregation.add(update)
            if update.loss is not None:
                loss += update.loss * update.samples
                trained += update.samples
        return aggregation.result(), {"loss": loss / trained} if trained else {}


class FederatedClassification:
    """The algorithm.

    Args:
        config: The run's configuration.
        make_model: Builds the network, without weights.
        classes: Number of classes.
        cohort: How many clients are trained together at most.
        population: Number of connected clients.
        device: Where the computation runs.
    """

    state_type = ServerState

    def __init__(
        self,
        config: ClassifyConfig,
        make_model: Callable[[], Classifier],
        classes: int,
        cohort: int,
        population: int,
        device: torch.device,
    ) -> None:
        self.config = config
        self.make_model = make_model
        self.population = population
        self.device = device
        self.trainer = LocalTrainer(make_model, config, classes, cohort, device)

    @property
    def rounds(self) -> int:
        """Number of rounds in a whole run."""
        return self.config.training.rounds

    def has_converged(self, state: ServerState) -> bool:
        """Never: all rounds are run."""
        return False

    def initial_state(self, randomness: Randomness) -> ServerState:
        """A model with random weights; control variates start at 0."""
        model = build(self.make_model, randomness.generator("model"))
        # Counters stay on the CPU, where they are counted.
        entries = {
            name: entry.to(self.device) if entry.is_floating_point() else entry
            for name, entry in model.state_dict().items()
        }
        controlled = METHODS[self.config.method].controlled
        control = torch.zeros_like(self.trainer.models.weights[0]) if controlled else None
        return ServerState(self.trainer.method.shared(entries), control)

    def exchanges(self, number: int, state: ServerState) -> Sequence[Exchange[ServerState]]:
        """One exchange a round."""
        return [TrainingExchange(self.trainer, self.population)]
