"""Phases: preprocessing that clients fit together before a clustering system begins.

A phase has a state of its own, which is sent with the first message of each of the system's rounds,
so that clients that join late or restart get it, too.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyExchange,
    AnyServerWork,
    ClientSide,
    ClientWork,
    Metrics,
    RefusedUpdateError,
    ServerWork,
    State,
    SummedWork,
    Task,
)
from ccfcpp.engine.payload import INLINE, pack, parametrize
from ccfcpp.engine.update_format import UpdateFormat
from ccfcpp.models.state import ModelState

K = TypeVar("K")
_KEPT = "prepared"
"""Key in a client's scratch: the phase's state, and a copy of the client with its samples."""


class Phase(ABC, Generic[K]):
    """Base class of preprocessing that clients fit together and apply to their samples.

    Attributes:
        knowledge: Type of the phase's state, a dataclass.
        rounds: Number of its own rounds, before the system's.
        learns: Whether anything is fitted to the samples, so that clients need the state.
    """

    knowledge: type[K]
    rounds: int = 0
    learns: bool = True

    def begin(self, randomness: Randomness) -> K:
        """Return the phase's state before the first round."""
        return self.knowledge()

    def exchanges(self, number: int) -> Sequence[AnyServerWork]:
        """Return the server's half of each exchange in the phase's own round ``number``."""
        return []

    @abstractmethod
    def last_exchanges(self) -> Sequence[AnyServerWork]:
        """Return the exchanges that complete the phase; they begin the system's first round."""

    @abstractmethod
    def client_works(self, context: ClientContext) -> Sequence[AnyClientWork]:
        """Return the clients' half of each of the phase's exchanges, for one process."""

    @abstractmethod
    def is_learnt(self, known: K) -> bool:
        """Return whether the phase's state ``known`` is complete."""

    @abstractmethod
    def samples(self, known: K, client: Client) -> Tensor:
        """Return a client's samples, preprocessed by the phase's state ``known``."""

    def public(self, known: K) -> K:
        """Return the part of the phase's state ``known`` that clients need."""
        return known


@dataclass(frozen=True)
class Prepared(Generic[State, K]):
    """State, message or final model of a system, with the state of its phase (preprocessing).

    Attributes:
        system: State, message or final model of the system alone.
        preparation: The phase's state; None if it is not sent or is empty.
    """

    system: State = field(metadata=INLINE)
    preparation: K | None = None

    @property
    def centroids(self) -> Tensor | None:
        """The system's centroids; None before there are any."""
        system: Any = self.system
        centroids: Tensor | None = system.centroids
        return centroids


Value = Prepared[Any, Any]


class PhasedClustering(ClusteringAlgorithm[Any]):
    """A clustering system on samples that a phase preprocesses, whose exchanges come first.

    Args:
        phase: The phase.
        system: The system, for preprocessed samples.
    """

    def __init__(self, phase: Phase[Any], system: ClusteringAlgorithm[Any]) -> None:
        self.phase = phase
        self.system = system
        self.rounds = phase.rounds + system.rounds
        self.scored_every = system.scored_every
        self.state_type = self.prepared_type(system.state_type)
        self.by_angle = system.by_angle
        self.by_pixels = system.by_pixels
        self.by_model = system.by_model

    def prepared_type(self, kind: type[object]) -> type[Any]:
        """Return the type ``Prepared[kind, …]``: a ``kind`` together with the phase's state."""
        return parametrize(Prepared, kind, self.phase.knowledge)

    def initial_state(self, randomness: Randomness) -> Value:
        """Return the initial states of the phase (preprocessing) and of the system."""
        return Prepared(self.system.initial_state(randomness), self.phase.begin(randomness))

    def exchanges(self, number: int, state: Value) -> Sequence[AnyServerWork]:
        """Return a round's exchanges: those that complete the preprocessing, then the system's."""
        if number < self.phase.rounds:
            return self._of_phase(self.phase.exchanges(number))
        works = self.system.exchanges(number - self.phase.rounds, state.system)
        learning = [] if self.is_complete(state) else self.phase.last_exchanges()
        return [*self._of_phase(learning), *self._of_system(works)]

    def plan(self, state: Value) -> list[Sequence[AnyServerWork]]:
        """Return each round's exchanges if nothing fails, so that the preprocessing runs once."""
        own = [self._of_phase(self.phase.exchanges(number)) for number in range(self.phase.rounds)]
        first, *later = map(self._of_system, self.system.plan(state.system))
        learning = self._of_phase(self.phase.last_exchanges())
        return [*own, [*learning, *first], *later]

    def _of_phase(self, works: Sequence[AnyServerWork]) -> "list[AnyServerWork]":
        return [OfPhase(self, work) for work in works]

    def _of_system(self, works: Sequence[AnyServerWork]) -> "list[AnyServerWork]":
        return [OfSystem(self, work, place == 0) for place, work in enumerate(works)]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' half of all exchanges, the system's on preprocessed samples."""
        side = self.system.client_side(context)
        works = [
            (PreparedSum if isinstance(work, SummedWork) else PreparedWork)(self, work)
            for work in side.works.values()
        ]
        return ClientSide.of(*self.phase.client_works(context), *works, cohort=side.cohort)

    def exchange_with_preparation(self, exchange: AnyExchange) -> AnyExchange:
        """Return a copy of a system's exchange whose message may hold the preprocessing's state."""
        return replace(exchange, message=self.prepared_type(exchange.message))

    def has_converged(self, state: Value) -> bool:
        """Return whether the system has converged."""
        return self.system.has_converged(state.system)

    def final_state(self, state: Value) -> Value:
        """Return the state with what the system delivers."""
        return replace(state, system=self.system.final_state(state.system))

    def phase_state(self, value: Value) -> Any:
        """Return the preprocessing's state that is stored in a state, message or final model."""
        return self.phase.knowledge() if value.preparation is None else value.preparation

    def is_complete(self, value: Value) -> bool:
        """Return whether the preprocessing's state in a state, message or model is complete."""
        return self.phase.is_learnt(self.phase_state(value))

    def preprocess(self, value: Value, client: Client) -> Client:
        """Return a copy of the client with preprocessed samples; it is cached in ``scratch``.

        Raises:
            FederationError: The preprocessing is not fitted, since no client took part in that.
        """
        if not self.is_complete(value):
            raise FederationError(
                "no client took part in what precedes the clusters, or all were refused: lower "
                "availability.dropout_rate, or give more rounds"
            )
        known = self.phase.public(self.phase_state(value))
        kept: tuple[Any, Client] | None = client.scratch.get(_KEPT)
        if kept is None or not _same(known, kept[0]):
            samples = self.phase.samples(known, client)
            kept = known, replace(client, images=samples, memory={}, scratch={})
            client.scratch[_KEPT] = kept
        return kept[1]

    def client_for_message(self, message: Value, client: Client) -> Client:
        """Return a copy of the client with samples preprocessed by the state in a message.

        Only a round's first message has the phase's state; later ones use the cached copy.

        Raises:
            RefusedUpdateError: There is no cached copy, or the phase is not complete.
        """
        if message.preparation is None and self.phase.learns:
            kept: tuple[Any, Client] | None = client.scratch.get(_KEPT)
            if kept is None:
                raise RefusedUpdateError("it has not begun this round")
            return kept[1]
        if not self.is_complete(message):
            raise RefusedUpdateError("nobody took part in the preparation")
        return self.preprocess(message, client)

    def knows_clusters(self, state: Value) -> bool:
        """Return whether samples can be assigned to clusters."""
        return self.system.knows_clusters(state.system)

    def centres(self, state: Value) -> Tensor | None:
        """Return the centre of each cluster, of shape (k, dimensions); None if there are none."""
        return self.system.centres(state.system)

    def assign(self, state: Value, client: Client) -> Tensor:
        """Return the cluster of each sample, int64 of shape (samples,)."""
        return self.system.assign(state.system, self.preprocess(state, client))

    def represent(self, state: Value, client: Client) -> Tensor | None:
        """Map a client's samples to the centroids' space, (samples, d); None before the fit."""
        if not self.is_complete(state):
            return None
        return self.system.represent(state.system, self.preprocess(state, client))

    def final_model(self, state: Value) -> Value:
        """Return the system's final model, with the fitted preprocessing."""
        known = self.phase.public(self.phase_state(state))
        return Prepared(self.system.final_model(state.system), known)

    @property
    def final_model_type(self) -> type[object]:
        """The class of the final model."""
        return self.prepared_type(self.system.final_model_type)

    def assign_by_model(self, final_model: Value, client: Client) -> Tensor:
        """Return the cluster of each sample under a final model, int64 of shape (samples,)."""
        return self.system.assign_by_model(final_model.system, self.preprocess(final_model, client))

    def probabilities(self, known: Value, client: Client) -> Tensor | None:
        """Return the probability of each cluster, of shape (samples, k); None if there are none."""
        return self.system.probabilities(known.system, self.preprocess(known, client))

    def pictures(self, state: Value) -> Mapping[str, Tensor]:
        """Return the system's pictures by name."""
        return self.system.pictures(state.system)

    def describe(self) -> dict[str, object]:
        """Return the system's entries for the summary that are known before the run."""
        return self.system.describe()

    def summarize(self, state: Value) -> dict[str, object]:
        """Return the system's entries for the summary from the last state."""
        return self.system.summarize(state.system)


def _same(first: object, second: object) -> bool:
    if first is second:
        return True
    one, other = pack(first), pack(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class _Wrapping(ServerWork[Any, Any, Any]):
    """Base class of a server's half of an exchange, on one of the fields of ``Prepared``."""

    def __init__(self, phased: PhasedClustering, work: AnyServerWork) -> None:
        self.phased = phased
        self.work = work
        self.exchange = work.exchange

    def _own(self, message: Any) -> Any:
        return message

    def update_format(self, message: Any) -> UpdateFormat:
        return self.work.update_format(self._own(message))

    def check(self, message: Any, update: Any, senders: Sequence[Member]) -> None:
        self.work.check(self._own(message), update, senders)

    def attributed(self, update: Any, senders: Sequence[int]) -> Any:
        return self.work.attributed(update, senders)

    def project_noisy(self, message: Any, update: Any) -> Any:
        return self.work.project_noisy(self._own(message), update)

    def local_model(self, update: Any) -> ModelState | None:
        return self.work.local_model(update)


class OfPhase(_Wrapping):
    """Server's half of an exchange of the phase (preprocessing), on the phase's state."""

    def is_due(self, state: Value) -> bool:
        """Return whether the phase's state has what the exchange needs."""
        return self.work.is_due(self.phased.phase_state(state))

    def broadcast(self, state: Value) -> Any:
        """Return the phase's message to every client."""
        return self.work.broadcast(self.phased.phase_state(state))

    def aggregate(
        self, state: Value, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[Value, Metrics]:
        """Return the state after the phase (preprocessing) has aggregated the updates."""
        learnt, figures = self.work.aggregate(self.phased.phase_state(state), updates, randomness)
        return replace(state, preparation=learnt), figures

    def without_updates(self, state: Value) -> Value:
        """Return the state after no update of the phase's was accepted."""
        return replace(state, preparation=self.work.without_updates(self.phased.phase_state(state)))


class OfSystem(_Wrapping):
    """Server's half of an exchange of the system, on the system's field of the state.

    Args:
        phased: The phase and the system.
        work: The system's own half.
        first: Whether it is the first of its round, whose message has the phase's state.
    """

    def __init__(self, phased: PhasedClustering, work: AnyServerWork, first: bool) -> None:
        super().__init__(phased, work)
        self.first = first
        self.exchange = phased.exchange_with_preparation(work.exchange)

    def _own(self, message: Value) -> Any:
        return message.system

    def is_due(self, state: Value) -> bool:
        """Return whether the phase is complete, and the system's state has what is needed."""
        return self.phased.is_complete(state) and self.work.is_due(state.system)

    def broadcast(self, state: Value) -> Value:
        """Return the system's message; the first of a round also holds the phase's state."""
        known = self.phased.phase.public(self.phased.phase_state(state)) if self.first else None
        return Prepared(self.work.broadcast(state.system), known)

    def aggregate(
        self, state: Value, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[Value, Metrics]:
        """Return the state after the system has aggregated the updates."""
        after, figures = self.work.aggregate(state.system, updates, randomness)
        return replace(state, system=after), figures

    def without_updates(self, state: Value) -> Value:
        """Return the state after no update of the system's was accepted."""
        return replace(state, system=self.work.without_updates(state.system))


class PreparedWork(ClientWork[Value, Any]):
    """Clients' half of a system's exchange, on preprocessed samples."""

    def __init__(self, phased: PhasedClustering, work: AnyClientWork) -> None:
        self.phased = phased
        self.work = work
        self.exchange = phased.exchange_with_preparation(work.exchange)
        self.cohort = work.cohort

    def local_updates(
        self,
        task: Task,
        message: Value,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> Sequence[Any]:
        """Return the system's updates for preprocessed samples."""
        inner = self._inner(message, clients)
        updates = self.work.local_updates(task, message.system, inner, randomness)
        self._remember(clients, inner)
        return updates

    def local_sum(
        self,
        task: Task,
        message: Value,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> Any:
        """Return the system's sum over preprocessed samples."""
        inner = self._inner(message, clients)
        total = self.work.local_sum(task, message.system, inner, randomness)
        self._remember(clients, inner)
        return total

    def _inner(self, message: Value, clients: Sequence[Client]) -> list[Client]:
        return [
            replace(self.phased.client_for_message(message, client), memory=client.memory)
            for client in clients
        ]

    def _remember(self, clients: Sequence[Client], inner: Sequence[Client]) -> None:
        for client, own in zip(clients, inner, strict=True):
            client.memory = own.memory


class PreparedSum(PreparedWork, SummedWork[Value, Any]):
    """Clients' half of a system's exchange whose updates are sums, on preprocessed samples."""
