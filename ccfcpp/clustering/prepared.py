"""Any system after a stage of lessons, such as one on prepared vectors.

Clients know what was learnt from the first message of each round, and keep what they make of it
beside their samples, so that a client that joins late, or starts again, has it too. What travels
and what the server keeps are the system's own dataclasses with one more field, so that the system,
and all that reads its parts, sees what it always sees.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.lessons import Lesson, Stage
from ccfcpp.clustering.methods import METHODS, check_takes
from ccfcpp.clustering.vectors.preparation import vector_stage
from ccfcpp.core.config import VectorsConfig
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyClientWork,
    AnyExchange,
    AnyServerWork,
    ClientSide,
    ClientWork,
    Figures,
    RefusedUpdateError,
    ServerWork,
    SummedWork,
    Task,
)
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import added_up, pack
from ccfcpp.models.state import ModelState

T = TypeVar("T")
_KEPT = "prepared"
"""Key in a client's scratch: what was learnt, and the holder that the stage made of it."""


def made(problem: Problem) -> ClusteringAlgorithm[Any]:
    """Make the system of a problem, after the stage that it needs.

    Raises:
        UsageError: The system does not take the kind of data, or does not fit the problem.
    """
    config = problem.config
    check_takes(config.method, "vectors" if problem.has_vectors else "images")
    system = METHODS[config.method]
    vectors = config.section(VectorsConfig)
    if not problem.has_vectors or vectors.is_plain:
        return system.make(problem)
    (d,) = problem.image_shape
    stage = vector_stage(vectors, d)
    return Prepared(stage, system.make(replace(problem, image_shape=(vectors.components or d,))))


_DERIVED: dict[Any, Any] = {}


def with_preparation(kind: Any, knowledge: type[Any]) -> Any:
    """Derive from a dataclass one that also holds what was learnt: always the same one."""
    if (kind, knowledge) not in _DERIVED:
        added = [("preparation", knowledge | None, None)]
        made = make_dataclass(kind.__name__, added, bases=(kind,), frozen=True)
        _DERIVED[kind, knowledge] = made
    return _DERIVED[kind, knowledge]


class Prepared(ClusteringAlgorithm[Any]):
    """A system after a stage.

    Args:
        stage: What is learnt first.
        inner: The system, for what the stage makes of clients.

    Attributes:
        travels: Whether anything is learnt, which clients then need.
    """

    def __init__(self, stage: Stage, inner: ClusteringAlgorithm[Any]) -> None:
        self.stage = stage
        self.inner = inner
        self.travels = bool(stage.lessons)
        self.rounds = inner.rounds
        self.state_type = with_preparation(inner.state_type, stage.knowledge)
        self.scored_every = inner.scored_every
        self.by_angle = inner.by_angle
        self.by_pixels = inner.by_pixels
        self.by_model = inner.by_model

    def initial_state(self, randomness: Randomness) -> Any:
        """The state in which the system begins; nothing is learnt."""
        return self._attached(self.inner.initial_state(randomness), self.stage.knowledge())

    def _attached(self, value: Any, known: Any) -> Any:
        return attached(value, known, self.stage.knowledge)

    def exchanges(self, number: int, state: Any) -> Sequence[AnyServerWork]:
        """The exchanges of the system; those of the stage come first until all is learnt."""
        works = self._carrying(self.inner.exchanges(number, state))
        return works if self.is_whole(state) else [*self._learning(), *works]

    def plan(self, state: Any) -> list[Sequence[AnyServerWork]]:
        """The exchanges of the system; in the first round they follow those of the stage."""
        first, *later = map(self._carrying, self.inner.plan(state))
        return [[*self._learning(), *first], *later]

    def _learning(self) -> "list[Learning]":
        lessons = self.stage.lessons
        return [
            Learning(self.stage, each, lessons[:place], self.public)
            for place, each in enumerate(lessons)
        ]

    def _carrying(self, works: Sequence[AnyServerWork]) -> "list[Carrying]":
        return [Carrying(self, work, place == 0) for place, work in enumerate(works)]

    def client_side(self, crew: Crew) -> ClientSide:
        """The clients' half of the stage, and the system's work on what the stage makes of them."""
        side = self.inner.client_side(crew)
        sums = {lesson.exchange.name: lesson.work(crew) for lesson in self.stage.lessons}
        works = {name: self._on_prepared(work) for name, work in side.works.items()}
        return ClientSide(sums | works, side.cohort)

    def _on_prepared(self, work: AnyClientWork) -> AnyClientWork:
        kind = PreparedSum if isinstance(work, SummedWork) else PreparedWork
        return kind(work, self.carrying(work.exchange), self.holder)

    def carrying(self, exchange: AnyExchange) -> AnyExchange:
        """The same exchange, with messages that may have what was learnt."""
        return replace(exchange, message=with_preparation(exchange.message, self.stage.knowledge))

    def public(self, known: Any) -> Any:
        """What goes down of what was learnt."""
        return known

    def holder(self, known: Any, holder: Client) -> Client:
        """The holder that the system works with.

        Raises:
            RefusedUpdateError: It does not know what was learnt.
        """
        kept = holder.scratch.get(_KEPT)
        if self.travels and known.preparation is None:
            if kept is None:
                raise RefusedUpdateError("it has not begun this round")
            return cast(Client, kept[1])
        learnt = self.public(self.stage.known_of(known))
        if kept is None or not _same(learnt, kept[0]):
            if not self.stage.is_learnt(learnt, self.stage.lessons):
                raise RefusedUpdateError("nobody took part in the preparation")
            kept = holder.scratch[_KEPT] = learnt, self.stage.holder(learnt, holder)
        return cast(Client, kept[1])

    def has_converged(self, state: Any) -> bool:
        """Whether the system has converged."""
        return self.inner.has_converged(state)

    def knows_clusters(self, state: Any) -> bool:
        """Whether the system can assign samples."""
        return self.inner.knows_clusters(state)

    def centres(self, state: Any) -> Tensor | None:
        """The centres of the system's clusters."""
        return self.inner.centres(state)

    def assign(self, state: Any, holder: Client) -> Tensor:
        """The cluster of each sample."""
        return self.inner.assign(state, self.holder(state, holder))

    def represent(self, state: Any, holder: Client) -> Tensor | None:
        """Where the system places what the stage makes of samples; None before all is learnt."""
        if not self.is_whole(state):
            return None
        return self.inner.represent(state, self.holder(state, holder))

    def is_whole(self, state: Any) -> bool:
        """Whether all has been learnt."""
        return self.stage.is_learnt(self.stage.known_of(state), self.stage.lessons)

    def delivery(self, state: Any) -> object:
        """What the system delivers, and what was learnt."""
        return self._attached(self.inner.delivery(state), self.public(state.preparation))

    @property
    def delivery_type(self) -> type[object]:
        """The type of what the system delivers, with what was learnt."""
        kind: type[object] = with_preparation(self.inner.delivery_type, self.stage.knowledge)
        return kind

    def assign_delivered(self, delivery: Any, holder: Client) -> Tensor:
        """The cluster of each sample."""
        return self.inner.assign_delivered(delivery, self.holder(delivery, holder))

    def probabilities(self, known: Any, holder: Client) -> Tensor | None:
        """The probabilities that the system gives to what the stage makes of samples."""
        return self.inner.probabilities(known, self.holder(known, holder))

    def pictures(self, state: Any) -> Mapping[str, Tensor]:
        """The pictures that the system makes."""
        return self.inner.pictures(state)

    def describe(self) -> dict[str, object]:
        """The facts of the system."""
        return self.inner.describe()

    def found(self, state: Any) -> dict[str, object]:
        """The facts of the system about the last state."""
        return self.inner.found(state)


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    one, other = pack(first), pack(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def attached(value: T, known: Any, knowledge: type[Any]) -> T:
    """Return a dataclass's values with what was learnt."""
    kind: Any = type(value)
    own = {f.name: getattr(value, f.name) for f in fields(kind) if f.name != "preparation"}
    if "preparation" not in kind.__dataclass_fields__:
        kind = with_preparation(kind, knowledge)
    result: T = kind(**own, preparation=known)
    return result


@dataclass(frozen=True)
class Learning(ServerWork[Any, Any, Any]):
    """The server's half of a lesson.

    Attributes:
        stage: Of which it is.
        lesson: The lesson.
        before: Those before it.
        public: What goes down of what is known.
    """

    stage: Stage
    lesson: Lesson
    before: Sequence[Lesson]
    public: Callable[[Any], Any]

    @property
    def exchange(self) -> AnyExchange:  # type: ignore[override]
        """What both sides know."""
        return self.lesson.exchange

    def is_due(self, state: Any) -> bool:
        """Whether the lessons before it have been learnt."""
        return self.stage.is_learnt(self.stage.known_of(state), self.before)

    def broadcast(self, state: Any) -> Any:
        """What is known so far."""
        return self.public(self.stage.known_of(state))

    def form(self, message: Any) -> Form:
        """The form of sums over nothing."""
        return form_of(pack(self.lesson.zeros()))

    def check(self, message: Any, update: Any, senders: Sequence[Member]) -> None:
        """Refuse what the lesson refuses."""
        self.lesson.check(update, senders)

    def aggregate(
        self, state: Any, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[Any, Figures]:
        """The state with what the total teaches."""
        learnt = self.lesson.learn(self.stage.known_of(state), added_up(updates), randomness)
        return replace(state, preparation=learnt), {}


class Passing(ServerWork[Any, Any, Any]):
    """The server's half of an exchange that wraps another half, which works on a part of the state.

    Attributes:
        work: The wrapped half.
    """

    work: AnyServerWork

    def form(self, message: Any) -> Form:
        """The form of the wrapped half's updates."""
        return self.work.form(message)

    def check(self, message: Any, update: Any, senders: Sequence[Member]) -> None:
        """Refuse what the wrapped half refuses."""
        self.work.check(message, update, senders)

    def attributed(self, update: Any, senders: Sequence[int]) -> Any:
        """An update as the wrapped half attributes it."""
        return self.work.attributed(update, senders)

    def project_noisy(self, message: Any, update: Any) -> Any:
        """Project an update with noise as the wrapped half does."""
        return self.work.project_noisy(message, update)

    def local_model(self, update: Any) -> ModelState | None:
        """The local model that the wrapped half finds."""
        return self.work.local_model(update)


class Carrying(Passing):
    """The server's half of a system's exchange.

    Args:
        prepared: The system after its stage.
        work: The half of the system.
        first: Whether it is the first of its round, which has what was learnt.
    """

    def __init__(self, prepared: Prepared, work: AnyServerWork, first: bool) -> None:
        self.prepared = prepared
        self.work = work
        self.first = first
        self.exchange = prepared.carrying(work.exchange)

    def _with(self, value: Any, known: Any) -> Any:
        return attached(value, known, self.prepared.stage.knowledge)

    def is_due(self, state: Any) -> bool:
        """Whether all has been learnt, and the system's work is due."""
        return self.prepared.is_whole(state) and self.work.is_due(state)

    def broadcast(self, state: Any) -> Any:
        """What the system sends down, and perhaps what was learnt."""
        known = self.prepared.public(state.preparation) if self.first else None
        return self._with(self.work.broadcast(state), known)

    def aggregate(
        self, state: Any, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[Any, Figures]:
        """The system's next state, with what was learnt as it is."""
        after, figures = self.work.aggregate(state, updates, randomness)
        return self._with(after, state.preparation), figures


Holder = Callable[[Any, Client], Client]


class PreparedWork(ClientWork[Any, Any]):
    """A system's work on what the stage makes of clients; it remembers in the clients' memory."""

    def __init__(self, work: AnyClientWork, exchange: AnyExchange, holder: Holder) -> None:
        self.work = work
        self.exchange = exchange
        self.holder = holder
        self.cohort = work.cohort

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Any]:
        """The updates that the system makes of prepared samples."""
        return self._of(self.work.local_updates, task, message, clients, randomness)

    def local_sum(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Any:
        """The sum that the system makes of prepared samples."""
        return self._of(self.work.local_sum, task, message, clients, randomness)

    def _of(
        self,
        ask: Callable[[Task, Any, Sequence[Client], Randomness], T],
        task: Task,
        message: Any,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> T:
        inner = [self.holder(message, client) for client in clients]
        for client, own in zip(clients, inner, strict=True):
            own.memory = client.memory
        answer = ask(task, message, inner, randomness)
        for client, own in zip(clients, inner, strict=True):
            client.memory, own.memory = own.memory, {}
        return answer


class PreparedSum(PreparedWork, SummedWork[Any, Any]):
    """A system's work on what the stage makes of clients, where the updates are sums."""
