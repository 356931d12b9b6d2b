"""The round loop."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Algorithm, Exchange, RefusedUpdateError, State
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client, Memory, cohorts
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import nbytes, not_finite, pack


@dataclass
class RoundReport:
    """What happened in one round.

    Attributes:
        round: The round's number, from 0.
        clients: Numbers of the clients that took part in what travelled, or of all connected ones
            where nothing did.
        refused: Why the server refused updates, by the client's number.
        bytes_down: Bytes that all clients received together.
        bytes_up: Bytes that all clients sent together, refused updates included.
        seconds: Wall-clock time of the round.
        figures: What the exchanges report, such as ``loss``.
    """

    round: int
    clients: list[int]
    refused: dict[int, list[str]] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)


class Federation(Generic[State]):
    """Clients and a server in one process, running one algorithm.

    Args:
        algorithm: The system to run.
        clients: The connected clients; their order does not matter.
        availability: Which of them take part in each round.
        randomness: The run's source of random numbers.
        memories: What the clients remember.

    Attributes:
        on_update: Called with the round, the client's number and the update, for each update that
            the server accepts, before it is aggregated. Its time is not the round's.
    """

    def __init__(
        self,
        algorithm: Algorithm[State],
        clients: Sequence[Client],
        availability: Availability,
        randomness: Randomness,
        memories: ClientMemories,
    ) -> None:
        self.algorithm = algorithm
        self.clients = {client.id: client for client in sorted(clients, key=lambda c: c.id)}
        self.availability = availability
        self.randomness = randomness
        self.memories = memories
        self.on_update: Callable[[int, int, object], None] = lambda number, client, update: None
        self._looking = 0.0

    def run(self, state: State, first_round: int = 0) -> Iterator[tuple[State, RoundReport]]:
        """Run the rounds from ``first_round`` on; after each, give the new state and a report."""
        number = first_round
        while not self.is_over(state, number):
            state, report = self.run_round(state, number)
            yield state, report
            number += 1

    def is_over(self, state: State, number: int) -> bool:
        """Whether there is no round ``number``: all are run, or the algorithm has converged."""
        return number >= self.algorithm.rounds or self.algorithm.has_converged(state)

    def run_round(self, state: State, number: int) -> tuple[State, RoundReport]:
        """Run one round. Where nobody takes part, the state stays as it is."""
        started, self._looking = time.monotonic(), 0.0
        randomness = self.randomness.at_round(number)
        available = self.availability.taking_part(list(self.clients), randomness)
        reached = [self.clients[client] for client in available]
        exchanges = self.algorithm.exchanges(number, state)
        alone = not any(exchange.travels for exchange in exchanges)
        report = RoundReport(number, list(self.clients) if alone else available)
        for exchange in exchanges:
            # What needs no connection goes on without one.
            clients = reached if exchange.travels else list(self.clients.values())
            state = self._run_exchange(exchange, state, clients, randomness, report)
        report.seconds = time.monotonic() - started - self._looking
        return state, report

    def _run_exchange(
        self,
        exchange: Exchange[State],
        state: State,
        clients: list[Client],
        randomness: Randomness,
        report: RoundReport,
    ) -> State:
        accepted = self._accepted(exchange, exchange.broadcast(state), clients, randomness, report)
        first = next(accepted, None)
        if first is None:
            return state
        updates = itertools.chain([first], accepted)
        state, figures = exchange.aggregate(state, updates, randomness)
        report.figures |= figures
        return state

    def _accepted(
        self,
        exchange: Exchange[State],
        message: object,
        clients: list[Client],
        randomness: Randomness,
        report: RoundReport,
    ) -> Iterator[object]:
        """The updates that can be used, cohort after cohort."""
        for cohort in cohorts(clients, exchange.cohort):
            with section("client memories"):
                remembered = [self._wake(client, exchange) for client in cohort]
            updates = exchange.local_updates(message, cohort, randomness)
            for client, before, update in zip(cohort, remembered, updates, strict=True):
                report.bytes_down += nbytes(message) if exchange.travels else 0
                memory, client.memory = client.memory, {}
                try:
                    if isinstance(update, RefusedUpdateError):
                        raise update
                    report.bytes_up += nbytes(update) if exchange.travels else 0
                    check_update(exchange, message, update)
                except RefusedUpdateError as refusal:
                    # What led to such an update, such as moments that are NaN, is forgotten too.
                    reasons = report.refused.setdefault(client.id, [])
                    reasons.append(f"{exchange.name}: {refusal}")
                    continue
                if memory is not before:
                    with section("client memories"):
                        self.memories.keep(client.id, memory, report.round)
                before_look = time.monotonic()
                self.on_update(report.round, client.id, update)
                self._looking += time.monotonic() - before_look
                yield update
            # While the next cohort works, nothing of this one is held.
            del updates, update, remembered, memory, before

    def _wake(self, client: Client, exchange: Exchange[State]) -> Memory:
        client.memory = self.memories.take(client.id) if exchange.uses_memory else {}
        return client.memory


def check_update(exchange: Exchange[Any], message: object, update: object) -> None:
    """Refuse what must not reach an average.

    Raises:
        RefusedUpdateError: The update has a wrong shape or holds NaN or Inf.
    """
    exchange.check(message, update)
    if name := not_finite(update):
        raise RefusedUpdateError(f"{name} holds NaN or Inf")


def check_same_shapes(expected: object, received: object, what: str) -> None:
    """Refuse a payload whose tensors differ from the expected ones in name, shape or dtype.

    Raises:
        RefusedUpdateError: They differ.
    """
    shapes, received_shapes = _shapes(expected), _shapes(received)
    for name in sorted(shapes.keys() | received_shapes.keys()):
        if shapes.get(name) != received_shapes.get(name):
            raise RefusedUpdateError(
                f"{what} {name} is {received_shapes.get(name)}, expected {shapes.get(name)}"
            )


def _shapes(payload: Any) -> dict[str, str]:
    tensors = payload if isinstance(payload, dict) else pack(payload)
    return {name: f"{tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()}
