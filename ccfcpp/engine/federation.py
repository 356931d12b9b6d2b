"""The round loop: it sends messages, checks updates, and has the algorithm aggregate them."""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from ccfcpp.core.errors import FederationError
from ccfcpp.core.progress import report_exchanges, report_round
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.units import format_count
from ccfcpp.engine.algorithm import Algorithm
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Member, sort_by_size
from ccfcpp.engine.exchange import (
    AbsentClientError,
    AnyServerWork,
    RefusedUpdateError,
    State,
    Task,
)
from ccfcpp.engine.payload import count_bytes, pack
from ccfcpp.engine.stages import (
    ExchangeRequest,
    Stage,
    check_reply,
    count_sent_bytes,
    wrap_transport,
)
from ccfcpp.engine.transport import Reply, Transport
from ccfcpp.models.state import ModelState

Carrier = TypeVar("Carrier", bound=Transport)
LocalModelObserver = Callable[[int, int, ModelState], None]
"""Takes a round, a client's number, and the local model that it sent."""


class Guard(Protocol):
    """Interface of an object that decides whether a round may be run, such as a privacy budget."""

    def allows(self, works: Sequence[AnyServerWork]) -> bool:
        """Return whether a round with these exchanges may be run."""

    def begins(self, number: int, works: Sequence[AnyServerWork]) -> None:
        """Record that round ``number`` starts."""

    def figures(self) -> dict[str, float]:
        """Return metrics for the round's report, such as the budget spent."""


@dataclass
class RoundReport:
    """Results of one round.

    Attributes:
        round: The round's number, from 0.
        clients: Numbers of the clients that took part, without those that did not answer; all
            connected clients if no exchange is sent.
        refused: Why the server refused updates, by the client's number.
        bytes_down: Bytes that all clients received together.
        bytes_up: Bytes that all clients sent together, refused updates included.
        seconds: Wall-clock time of the round.
        figures: Metrics of the exchanges, such as ``loss``, by name.
        absent: Why clients that were asked did not answer, by the client's number.
    """

    round: int
    clients: list[int]
    refused: dict[int, list[str]] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    absent: dict[int, list[str]] = field(default_factory=dict)

    def line(self) -> dict[str, Any]:
        """Return all fields by name, for a line of the log; ``absent`` only if not empty."""
        return {name: value for name, value in vars(self).items() if name != "absent" or value}


class Federation(Generic[State, Carrier]):
    """A server and its clients, running one algorithm.

    It sends messages, checks updates, counts bytes, and has the algorithm aggregate. The transport
    reaches the clients.

    Args:
        system: Name of the algorithm in tasks.
        stages: Steps that replies pass on their way, such as noise; the nearest to clients first.
        guard: Asked before each round; if it does not allow one, the run is over.
        observer: Called for each accepted update that holds a local model to compare, before it is
            aggregated. Its time is not counted as the round's.
        silent: Clients that did not answer in the round before.
        taken: Names of the exchanges of which an update was accepted in an earlier session.

    Attributes:
        silent: Clients that did not answer in the last round.
        taken: Names of the exchanges of which an update was accepted, in any round.
        fault: Why the run must not continue or end; None if it may.
    """

    def __init__(
        self,
        system: str,
        algorithm: Algorithm[State],
        members: Sequence[Member],
        availability: Availability,
        randomness: Randomness,
        transport: Carrier,
        stages: Sequence[Stage] = (),
        guard: Guard | None = None,
        observer: LocalModelObserver | None = None,
        silent: Iterable[int] = (),
        taken: Iterable[str] = (),
    ) -> None:
        self.system = system
        self.algorithm = algorithm
        self.members = {member.id: member for member in sorted(members, key=lambda m: m.id)}
        self.availability = availability
        self.randomness = randomness
        self.transport = transport
        self.guard = guard
        self.observer = observer
        self.stages = stages
        self._observing = 0.0
        self._answered: set[int] = set()
        self.silent: Collection[int] = set(silent)
        self.taken = set(taken)
        self.fault: str | None = None
        self._refused_since: dict[str, tuple[int, str]] = {}

    def run(self, state: State, first_round: int = 0) -> Iterator[tuple[State, RoundReport]]:
        """Run the rounds from ``first_round`` on, and yield the new state and a report after each.

        Raises:
            FederationError: Every client's update of an exchange was refused in two rounds, or in
                the whole run, or none came. The last round's report is yielded first.
        """
        number, over = first_round, self.is_over(state, first_round)
        while not over:
            state, report = self.run_round(state, number)
            number += 1
            if over := self.is_over(state, number):
                self.fault = self.fault or self._without_result()
                state = self.algorithm.final_state(state)
            yield state, report
            if self.fault:
                raise FederationError(self.fault)

    def _without_result(self) -> str | None:
        """Return why the run would have no result if it ended now; None if it has one."""
        reasons = (why for name, (_, why) in self._refused_since.items() if name not in self.taken)
        return next(reasons, None if self.taken else "no client has sent an update in any round")

    def is_over(self, state: State, number: int) -> bool:
        """Return whether the run ends before round ``number``."""
        if number >= self.algorithm.rounds:
            return True
        # The run does not end before late clients have taken part in a round.
        waits = self.availability.late and number <= self.availability.late_rounds
        if not waits and self.algorithm.has_converged(state):
            return True
        works = self.algorithm.exchanges(number, state) if self.guard else ()
        return self.guard is not None and not self.guard.allows(works)

    def run_round(self, state: State, number: int) -> tuple[State, RoundReport]:
        """Run one round. If no client takes part, the state stays as it is."""
        works = self.algorithm.exchanges(number, state)
        if self.guard is not None:
            self.guard.begins(number, works)
        state, report = self.run_works(works, state, number)
        if self.guard is not None:
            report.figures |= self.guard.figures()
        return state, report

    def run_works(
        self, works: Sequence[AnyServerWork], state: Any, number: int
    ) -> tuple[Any, RoundReport]:
        """Run ``works`` as round ``number``: the algorithm's exchanges, or an evaluation's."""
        started, self._observing, self._answered = time.monotonic(), 0.0, set()
        report_round(number)
        randomness = self.randomness.at_round(number)
        everyone = sort_by_size(self.members.values())
        available = self.availability.taking_part(list(self.members), randomness)
        reached = sort_by_size(self.members[client] for client in available)
        alone = not any(work.exchange.travels for work in works)
        report = RoundReport(number, list(self.members) if alone else available)
        taken: set[int] = set()
        paced, done = sum(not work.exchange.once for work in works), 0
        for index, work in enumerate(works):
            last = index + 1 == len(works)
            # Exchanges that are not sent need no connection.
            members = reached if work.exchange.travels else everyone
            if work.exchange.follows:
                members = [member for member in members if member.id in taken]
            task = Task(
                self.system, work.exchange.name, number, index, last, self._samples(members)
            )
            taken, refused = set(), list[int]()
            if members and work.is_due(state):
                request = ExchangeRequest(work, task, work.broadcast(state), members)
                updates = self._accept(request, report, taken, refused)
                if (first := next(updates, None)) is not None:
                    updates = itertools.chain([first], updates)
                    state, figures = work.aggregate(state, updates, randomness)
                    report.figures |= figures
                else:
                    state = work.without_updates(state)
                self._record(request, taken, refused, report)
            if not work.exchange.once:
                done += 1
                report_exchanges(done, paced)
        self.silent = report.absent.keys() - self._answered
        report.clients = [client for client in report.clients if client not in self.silent]
        report.seconds = time.monotonic() - started - self._observing
        return state, report

    def _record(
        self,
        request: ExchangeRequest,
        taken: Collection[int],
        refused: list[int],
        report: RoundReport,
    ) -> None:
        """Record whether an exchange had an accepted update; two rounds without end the run.

        One round may fail, since clients may restart in the middle of it. It does not count if a
        client is absent, so that a single hostile client cannot end the run.
        """
        if taken:
            self.taken.add(request.exchange.name)
            self._refused_since.pop(request.exchange.name, None)
        elif refused:
            first = self.members[refused[0]].name
            why = (
                f"all updates were refused in round {report.round + 1}, of "
                f"{format_count(len(refused), 'client')}; {first}: {report.refused[refused[0]][-1]}"
            )
            started = report.round, why
            since, why = self._refused_since.setdefault(request.exchange.name, started)
            everyone = len(refused) == len(request.members)
            # Clients refused earlier in the round are not asked again.
            if everyone and since < report.round and self.members.keys() <= report.refused.keys():
                self.fault = self.fault or why

    def _samples(self, members: Sequence[Member]) -> int:
        """Count the samples of clients that will probably answer; 0 if a guard keeps it secret."""
        if self.guard is not None:  # A client's update must not reveal which others were drawn.
            return 0
        return sum(each.samples for each in members if each.id not in self.silent)

    def _accept(
        self, request: ExchangeRequest, report: RoundReport, taken: set[int], refused: list[int]
    ) -> Iterator[object]:
        """Check the updates of an exchange, and yield those that are accepted as they come."""
        work, counts = request.work, request.exchange.travels
        down = count_bytes(pack(request.message)) if counts else 0
        for reply in wrap_transport(self.transport, self.stages)(request):
            if isinstance(reply.update, AbsentClientError):
                _note(report.absent, work, reply)
                continue
            self._answered.update(reply.clients)
            received = down * len(reply.clients)
            report.bytes_down += received if reply.bytes_down is None else reply.bytes_down
            if counts:
                report.bytes_up += count_sent_bytes(reply)
            try:
                update = check_reply(request, reply)
            except RefusedUpdateError as refusal:
                # The client keeps its earlier local state: the new one may be broken, such as NaN.
                _note(report.refused, work, replace(reply, update=refusal))
                refused.extend(reply.clients)
                continue
            reply.accept()
            taken.update(reply.clients)
            self._observe(work, report.round, reply)
            yield update if reply.noised else work.attributed(update, reply.clients)

    def _observe(self, work: AnyServerWork, number: int, reply: Reply) -> None:
        """Call the observer with the local models in a reply."""
        for one in reply.made_of or (reply,):
            # An update of several clients, or with noise, is no client's local model.
            is_one = not (one.others or one.noised)
            model = work.local_model(one.update) if is_one else None
            if self.observer is not None and model is not None:
                before = time.monotonic()
                self.observer(number, one.client, model)
                self._observing += time.monotonic() - before


def _note(where: dict[int, list[str]], work: AnyServerWork, reply: Reply) -> None:
    """Add to ``where`` why there is no update of a reply's clients."""
    for client in reply.clients:
        where.setdefault(client, []).append(f"{work.exchange.name}: {reply.update}")
