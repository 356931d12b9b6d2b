"""Federated classification: rounds of local training and aggregation by a method."""

from collections.abc import Callable, Iterable, Sequence

import torch

from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Algorithm, ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    ClientSide,
    ClientWork,
    Exchange,
    Metrics,
    RefusedUpdateError,
    ServerWork,
    Task,
)
from ccfcpp.engine.payload import check_samples
from ccfcpp.engine.threads import choose_cohort, threaded
from ccfcpp.engine.update_format import Count, Mean, Opaque, Part, Spec, UpdateFormat, format_of
from ccfcpp.models.network import FlatLayout, training_bytes
from ccfcpp.models.state import ModelState, random_state
from ccfcpp.models.steps import train_side_by_side
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig
from supervised.local_training import LocalTrainer
from supervised.losses import decorrelation_term
from supervised.messages import Broadcast, LocalUpdate, ServerState
from supervised.methods.method import Method
from supervised.networks import Classifier

TERM = "decorrelation"
"""Prefix of the keys of decorrelation terms in a round's metrics."""


def training_exchange(method: Method, logs_terms: bool) -> Exchange[Broadcast, LocalUpdate]:
    """Describe a round's exchange: the types and parts (fields) of message and update.

    If ``logs_terms``, clients also send the decorrelation term of each local epoch.
    """
    parts: dict[str, Part] = {
        "model": Mean("samples", separate=not method.aggregation.of_means),
        "samples": Count(),
        "steps": Count(),
        "loss": Mean("samples", report=True, optional=True),
        **method.parts,
    }
    if logs_terms:
        parts["terms"] = Opaque()
    return Exchange("training", method.message, method.update, parts, method.remembers)


class LocalTraining(ClientWork[Broadcast, LocalUpdate]):
    """Clients' side of a round: each trainer trains one client's model at a time, side by side."""

    def __init__(
        self, exchange: Exchange[Broadcast, LocalUpdate], trainers: Sequence[LocalTrainer]
    ) -> None:
        self.exchange = exchange
        self.trainers = trainers
        self.cohort = len(trainers)

    def local_updates(
        self, task: Task, message: Broadcast, clients: Sequence[Client], randomness: Randomness
    ) -> list[LocalUpdate]:
        """Train the clients' models together, at most one per trainer; return their updates."""
        trainings = [
            trainer.train(message, client, randomness)
            for trainer, client in zip(self.trainers, clients, strict=False)
        ]
        return train_side_by_side(trainings, self.trainers[0].sharing.device)


class FederatedClassification(
    Algorithm[ServerState], ServerWork[ServerState, Broadcast, LocalUpdate]
):
    """Algorithm of federated classification: clients train, and the server aggregates, each round.

    ``image_shape`` is (channels, height, width), ``population`` the number of connected clients.

    Raises:
        UsageError: The configuration does not fit the network.
    """

    def __init__(
        self,
        config: ClassifyConfig,
        make_model: Callable[[], Classifier],
        image_shape: tuple[int, ...],
        classes: int,
        population: int,
        device: torch.device,
    ) -> None:
        self.config = config
        self.make_model = make_model
        self.image_shape = image_shape
        self.classes = classes
        self.population = population
        self.device = device
        self.rounds = config.training.rounds
        self.method = CLASSIFIERS[config.method]
        self.state_type = self.method.state
        self.exchange = training_exchange(self.method, config.decorrelation.log_epochs)
        self.sharing = self.method.sharing(make_model, device)
        with torch.device("meta"):
            model = make_model()
        self.decorrelation = decorrelation_term(config.decorrelation, model.features)
        self._weights = FlatLayout(model.named_parameters())

    def initial_state(self, randomness: Randomness) -> ServerState:
        """Return the server's first state: random weights, and fields of the method (momentum)."""
        model = random_state(self.make_model, randomness.generator("model"), self.device)
        weights = torch.zeros(self._weights.size, device=self.device)
        return self.method.begin(self.sharing.shared(model), weights)

    def exchanges(self, number: int, state: ServerState) -> Sequence["FederatedClassification"]:
        """Return the only exchange of a round, training."""
        return [self]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' side, which trains as many clients together as memory allows."""
        batch = min(self.config.training.batch_size, context.largest)
        bytes_of_one = training_bytes(self.make_model, self.image_shape, batch, views=1)
        wanted = self.config.compute.cohort
        cohort = choose_cohort(wanted, context.together, bytes_of_one, self.device)
        shared = self.make_model, self.sharing, self.decorrelation, self.classes, context.least
        works = [
            LocalTraining(
                self.exchange, [LocalTrainer(self.config, *shared) for _ in range(cohort.together)]
            )
            for _ in range(cohort.threads)
        ]
        return ClientSide.of(threaded(works), cohort=cohort.clients)

    def broadcast(self, state: ServerState) -> Broadcast:
        """Return the message to clients: the global model, and the method's own fields if any."""
        return self.method.broadcast(state)

    def update_format(self, message: Broadcast) -> UpdateFormat:
        """Return an update's shapes and dtypes: shared parameters, counts, the method's fields."""
        count, loss = Spec(torch.int64), Spec(torch.float64, optional=True)
        update_format = format_of(message.model, "model/") | {
            "samples": count,
            "steps": count,
            "loss": loss,
        }
        if self.config.decorrelation.log_epochs:
            epochs = self.config.training.local_epochs
            update_format["terms"] = Spec(torch.float64, (epochs,), optional=True)
        return {**update_format, **self.method.update_format(message)}

    def check(self, message: Broadcast, update: LocalUpdate, senders: Sequence[Member]) -> None:
        """Refuse an update whose number of samples is not its sender's, or of steps is negative."""
        check_samples(update.samples, senders)
        if update.steps < 0:
            raise RefusedUpdateError(f"it claims {update.steps} steps")

    def aggregate(
        self, state: ServerState, updates: Iterable[LocalUpdate], randomness: Randomness
    ) -> tuple[ServerState, Metrics]:
        """Aggregate the updates by the method; report the sample-weighted loss, and logged terms.

        The metric ``decorrelation/n/e`` is the term of the n-th client by size in local epoch e.
        """
        names = self._weights.names
        aggregation = self.method.aggregation(state, names, self.config, self.population)
        loss, trained = 0.0, 0
        metrics: Metrics = {}
        for number, update in enumerate(updates, start=1):
            with section("aggregation"):
                aggregation.add(update)
            if update.loss is not None:
                loss += update.loss * update.samples
                trained += update.samples
            terms = [] if update.terms is None else update.terms.tolist()
            metrics |= {f"{TERM}/{number}/{e}": term for e, term in enumerate(terms, start=1)}
        if trained:
            metrics["loss"] = loss / trained
        return aggregation.result(), metrics

    def local_model(self, update: LocalUpdate) -> ModelState | None:
        """Return the client's model; None if its update lacks parameters that the client keeps."""
        return None if self.method.personal else update.model
