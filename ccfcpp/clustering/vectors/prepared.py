"""Any system on prepared vectors: the preparation comes before its first exchange.

Clients know the preparation from the first message of each round, and keep their prepared vectors
beside the others, so that a client that joins late, or starts again, has it too. What travels and
what the server keeps are the system's own dataclasses with one more field, so that the system, and
all that reads its parts, sees what it always sees.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem
from ccfcpp.clustering.methods import METHODS, check_takes
from ccfcpp.clustering.vectors.preparation import (
    AddUp,
    Fitting,
    Preparation,
    Sums,
    fittings,
    prepared,
)
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
from ccfcpp.engine.payload import added_up, check_counts, pack
from ccfcpp.models.state import ModelState

T = TypeVar("T")
_KEPT = "prepared"
"""Key in a client's scratch: the preparation, and the holder of what it makes of its vectors."""


def made(problem: Problem) -> ClusteringAlgorithm[Any]:
    """Make the system of a problem, on prepared vectors where these are to be prepared.

    Raises:
        UsageError: The system does not take the kind of data, or does not fit the problem.
    """
    config = problem.config
    check_takes(config.method, "vectors" if problem.has_vectors else "images")
    system = METHODS[config.method]
    vectors = config.section(VectorsConfig)
    if not problem.has_vectors or vectors.is_plain:
        return system.make(problem)
    steps = fittings(vectors, problem.image_shape[0])
    length = vectors.components or problem.image_shape[0]
    inner = system.make(replace(problem, image_shape=(length,)))
    return Prepared(problem, vectors, steps, inner)


_DERIVED: dict[Any, Any] = {}


def with_preparation(kind: Any) -> Any:
    """Derive from a dataclass one that also holds a preparation: always the same one."""
    if kind not in _DERIVED:
        added = [("preparation", Preparation | None, None)]
        _DERIVED[kind] = make_dataclass(kind.__name__, added, bases=(kind,), frozen=True)
    return _DERIVED[kind]


def known_of(state: Any) -> Preparation:
    """The preparation of a state; None, which packing makes of an empty one, is an empty one."""
    found: Preparation = state.preparation or Preparation()
    return found


def attached(value: T, preparation: Preparation | None) -> T:
    """Return a dataclass's values with a preparation."""
    kind: Any = type(value)
    own = {f.name: getattr(value, f.name) for f in fields(kind) if f.name != "preparation"}
    if "preparation" not in kind.__dataclass_fields__:
        kind = with_preparation(kind)
    result: T = kind(**own, preparation=preparation)
    return result


class Prepared(ClusteringAlgorithm[Any]):
    """A system on prepared vectors.

    Args:
        problem: Of the vectors as they are.
        config: What is to be done with them.
        steps: The exchanges of the preparation.
        inner: The system, for vectors as they are prepared.
    """

    def __init__(
        self,
        problem: Problem,
        config: VectorsConfig,
        steps: Sequence[Fitting],
        inner: ClusteringAlgorithm[Any],
    ) -> None:
        self.problem = problem
        self.config = config
        self.steps = steps
        self.inner = inner
        self.rounds = inner.rounds
        self.state_type = with_preparation(inner.state_type)
        self.by_angle = inner.by_angle
        self.by_pixels = inner.by_pixels

    def initial_state(self, randomness: Randomness) -> Any:
        """The system's, and a preparation of which nothing is known."""
        return attached(self.inner.initial_state(randomness), Preparation())

    def exchanges(self, number: int, state: Any) -> Sequence[AnyServerWork]:
        """The system's; those of the preparation come first until it is known."""
        works = self._carrying(self.inner.exchanges(number, state))
        return works if self._is_whole(state) else [*self._learning(), *works]

    def plan(self, state: Any) -> list[Sequence[AnyServerWork]]:
        """The system's; in the first round after those of the preparation."""
        first, *later = map(self._carrying, self.inner.plan(state))
        return [[*self._learning(), *first], *later]

    def _learning(self) -> "list[Learning]":
        steps, d = self.steps, self.problem.image_shape[0]
        return [Learning(step, steps[:place], d) for place, step in enumerate(steps)]

    def _carrying(self, works: Sequence[AnyServerWork]) -> "list[Carrying]":
        return [Carrying(work, place == 0, self._is_whole) for place, work in enumerate(works)]

    def client_side(self, crew: Crew) -> ClientSide:
        """Sums for the preparation, and the system's work on prepared vectors."""
        side = self.inner.client_side(crew)
        sums = {step.exchange.name: AddUp(crew, step) for step in self.steps}
        works = {name: on_prepared(work, self.holder) for name, work in side.works.items()}
        return ClientSide(sums | works, side.cohort)

    def holder(self, known: Any, holder: Client) -> Client:
        """The holder of the prepared vectors of a client.

        Raises:
            RefusedUpdateError: It does not know the preparation.
        """
        # One without exchanges has nothing that could travel.
        preparation = known.preparation if self.steps else Preparation()
        kept = holder.scratch.get(_KEPT)
        if preparation is None and kept is None:
            raise RefusedUpdateError("it has not begun this round")
        if kept is None or (preparation is not None and not _same(preparation, kept[0])):
            if not self._is_whole(known):
                raise RefusedUpdateError("nobody took part in the preparation")
            values = prepared(self.config, preparation, holder.images)
            inner = Client(holder.id, holder.name, values, holder.labels)
            kept = holder.scratch[_KEPT] = preparation, inner
        found: Client = kept[1]
        return found

    def has_converged(self, state: Any) -> bool:
        """As the system says."""
        return self.inner.has_converged(state)

    def knows_clusters(self, state: Any) -> bool:
        """As the system says."""
        return self.inner.knows_clusters(state)

    def centres(self, state: Any) -> Tensor | None:
        """The system's, among prepared vectors."""
        return self.inner.centres(state)

    def assign(self, state: Any, holder: Client) -> Tensor:
        """The cluster of each vector."""
        return self.inner.assign(state, self.holder(state, holder))

    def represent(self, state: Any, holder: Client) -> Tensor | None:
        """The system's, of prepared vectors; None before they can be prepared."""
        if not self._is_whole(state):
            return None
        return self.inner.represent(state, self.holder(state, holder))

    def _is_whole(self, state: Any) -> bool:
        """Whether all that is to be known of the preparation is known."""
        return _holds(known_of(state), self.steps, self.problem.image_shape[0])

    def delivery(self, state: Any) -> object:
        """What the system delivers, and the preparation."""
        return attached(self.inner.delivery(state), state.preparation)

    @property
    def delivery_type(self) -> type[object]:
        """The system's, with a preparation."""
        kind: type[object] = with_preparation(self.inner.delivery_type)
        return kind

    def assign_delivered(self, delivery: Any, holder: Client) -> Tensor:
        """The cluster of each vector."""
        return self.inner.assign_delivered(delivery, self.holder(delivery, holder))

    def probabilities(self, known: Any, holder: Client) -> Tensor | None:
        """The system's, of prepared vectors."""
        return self.inner.probabilities(known, self.holder(known, holder))

    def pictures(self, state: Any) -> Mapping[str, Tensor]:
        """The system's."""
        return self.inner.pictures(state)

    def describe(self) -> dict[str, object]:
        """The system's facts."""
        return self.inner.describe()

    def found(self, state: Any) -> dict[str, object]:
        """The system's facts of the last state."""
        return self.inner.found(state)


def _holds(known: Preparation, steps: Sequence[Fitting], d: int) -> bool:
    """Whether a preparation has what some exchanges give."""
    learnt = Preparation()
    for step in steps:
        learnt = step.learn(learnt, step.zeros(d))
    pairs = zip(vars(known).values(), vars(learnt).values(), strict=True)
    return all(needed is None or found is not None for found, needed in pairs)


def _same(first: Preparation, second: Preparation) -> bool:
    pairs = zip(vars(first).values(), vars(second).values(), strict=True)
    return all(a is b or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


@dataclass(frozen=True)
class Learning(ServerWork[Any, Preparation, Sums]):
    """The server's half of an exchange of the preparation.

    Attributes:
        step: The exchange.
        before: The exchanges before it.
        d: Length of the vectors.
    """

    step: Fitting
    before: Sequence[Fitting]
    d: int

    @property
    def exchange(self) -> AnyExchange:  # type: ignore[override]
        """What both sides know."""
        return self.step.exchange

    def is_due(self, state: Any) -> bool:
        """Whether the exchanges before it have been answered."""
        return _holds(known_of(state), self.before, self.d)

    def broadcast(self, state: Any) -> Preparation:
        """What is known so far."""
        return known_of(state)

    def form(self, message: Preparation) -> Form:
        """Sums and counts."""
        return form_of(pack(self.step.zeros(self.d)))

    def check(self, message: Preparation, update: Sums, senders: Sequence[Member]) -> None:
        """Refuse counts that the clients' vectors cannot have."""
        for count in (update.counts.min(), update.counts.max()):
            check_counts(count, senders)

    def aggregate(
        self, state: Any, updates: Iterable[Sums], randomness: Randomness
    ) -> tuple[Any, Figures]:
        """What the total says."""
        learnt = self.step.learn(known_of(state), added_up(updates))
        return replace(state, preparation=learnt), {}


class Carrying(ServerWork[Any, Any, Any]):
    """The server's half of a system's exchange.

    Args:
        work: The system's.
        first: Whether it is the first of its round, which has the preparation.
        is_whole: Whether the preparation of a state lacks nothing.
    """

    def __init__(self, work: AnyServerWork, first: bool, is_whole: Callable[[Any], bool]) -> None:
        self.work = work
        self.first = first
        self.is_whole = is_whole
        self.exchange = carrying(work.exchange)

    def is_due(self, state: Any) -> bool:
        """Whether vectors can be prepared, and the system's work is due."""
        return self.is_whole(state) and self.work.is_due(state)

    def broadcast(self, state: Any) -> Any:
        """What the system sends down, and perhaps the preparation."""
        return attached(self.work.broadcast(state), state.preparation if self.first else None)

    def form(self, message: Any) -> Form:
        """The system's."""
        return self.work.form(message)

    def check(self, message: Any, update: Any, senders: Sequence[Member]) -> None:
        """The system's."""
        self.work.check(message, update, senders)

    def mended(self, message: Any, update: Any) -> Any:
        """The system's."""
        return self.work.mended(message, update)

    def aggregate(
        self, state: Any, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[Any, Figures]:
        """The system's next state, with the preparation as it is."""
        after, figures = self.work.aggregate(state, updates, randomness)
        return attached(after, state.preparation), figures

    def local_model(self, update: Any) -> ModelState | None:
        """The system's."""
        return self.work.local_model(update)


def carrying(exchange: AnyExchange) -> AnyExchange:
    """The same exchange, with messages that may have a preparation."""
    return replace(exchange, message=with_preparation(exchange.message))


Holder = Callable[[Any, Client], Client]


def on_prepared(work: AnyClientWork, holder: Holder) -> AnyClientWork:
    """A system's work on the prepared vectors of clients."""
    kind = PreparedSum if isinstance(work, SummedWork) else PreparedWork
    return kind(work, holder)


class PreparedWork(ClientWork[Any, Any]):
    """A system's work; what it remembers is the client's memory."""

    def __init__(self, work: AnyClientWork, holder: Holder) -> None:
        self.work = work
        self.holder = holder
        self.exchange = carrying(work.exchange)
        self.cohort = work.cohort

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Any]:
        """The system's updates."""
        return self._of(self.work.local_updates, task, message, clients, randomness)

    def local_sum(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Any:
        """The system's sum."""
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
    """The same of work whose updates are sums."""
