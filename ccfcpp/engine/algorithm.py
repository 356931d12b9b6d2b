"""The interface of a federated system, which the engine runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyClientWork, AnyServerWork, ClientSide, State
from ccfcpp.engine.synchronised.contract import Bounding


@dataclass(frozen=True)
class ClientContext:
    """Settings of a round that all clients of one process share.

    Attributes:
        largest: Number of images of the largest client.
        together: Largest number of clients that take part in a round.
        bounding: Bounds what each of their images adds to a sum; None: nothing is bounded.
        least: The fewest images over which a client sends a centroid, mean or sum.
        alike: Whether all clients have equal weight, whatever their size (client-level privacy):
            each client's whole part of a sum is bounded.
        alone: Whether the server sees only the clients' total, without noise (secure sums).
    """

    largest: int
    together: int
    bounding: Bounding | None = None
    least: int = 0
    alike: bool = False
    alone: bool = False

    @staticmethod
    def of(
        clients: Sequence[Client],
        together: int | None = None,
        bounding: Bounding | None = None,
        least: int = 0,
        alike: bool = False,
        alone: bool = False,
    ) -> "ClientContext":
        """Return the context of some clients, which all take part unless a number is given."""
        count = len(clients) if together is None else together
        return ClientContext(max(map(len, clients)), count, bounding, least, alike, alone)


class Algorithm(ABC, Generic[State]):
    """Base class of federated systems: a server state, and exchanges per round that change it.

    The constructor builds nothing for training, so that a process that only assigns images stays
    light. A process that works for clients asks for the ``client_side``.

    Attributes:
        rounds: Largest number of rounds in a run.
        state_type: The dataclass that ``initial_state`` returns and a checkpoint holds.
        scored_every: Number of rounds between two states that are worth scoring.
    """

    rounds: int
    state_type: type[State]
    scored_every: int = 1

    def is_scored(self, number: int, every: int | None) -> bool:
        """Return whether the state after round ``number`` is scored."""
        if every is not None:
            return (number + 1) % every == 0
        return number + 1 == self.rounds or (number + 1) % self.scored_every == 0

    @abstractmethod
    def initial_state(self, randomness: Randomness) -> State:
        """Return the server's state before the first round."""

    @abstractmethod
    def exchanges(self, number: int, state: State) -> Sequence[AnyServerWork]:
        """Return the server's half of each exchange in round ``number``, in order."""

    @abstractmethod
    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the clients' half of each exchange, for the clients of one process."""

    def plan(self, state: State) -> list[Sequence[AnyServerWork]]:
        """Return the exchanges of each round, for a run in which no exchange fails."""
        return [self.exchanges(number, state) for number in range(self.rounds)]

    def has_converged(self, state: State) -> bool:
        """Return whether no further round would change the state, so that the run may end early."""
        return False


class Epilogue(ABC):
    """Base class of exchanges after the last round that evaluate the final state."""

    @abstractmethod
    def client_works(self, context: ClientContext) -> Mapping[str, AnyClientWork]:
        """Return the work of the clients of one process, by the exchange's name."""

    @abstractmethod
    def begin(self, state: Any) -> Any:
        """Return the initial state of the evaluation; None to skip its exchanges."""

    @abstractmethod
    def works(self, known: Any) -> Sequence[AnyServerWork]:
        """Return the server's half of each exchange of the evaluation, in order."""

    @abstractmethod
    def describe(self, known: Any) -> dict[str, object]:
        """Return the summary's results, from the evaluation's state ``known`` or None."""
