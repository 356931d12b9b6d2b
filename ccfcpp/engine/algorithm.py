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
    """Settings of the clients' work that all clients of one process share.

    Attributes:
        largest: Number of images of the largest client.
        together: Largest number of clients that take part in a round.
        bounding: Bounds what each image adds to a sum; None: nothing is bounded.
        least: Minimum number of images in a centroid, mean or sum that a client sends.
        alike: Whether all clients have equal weight, whatever their size (client-level privacy).
        alone: Whether the server gets exact sums over all clients in each round, so that a process
            with all clients may run whole steps by itself.
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
        """Return the context of some clients; by default all of them take part in a round."""
        count = len(clients) if together is None else together
        return ClientContext(max(map(len, clients)), count, bounding, least, alike, alone)


class Algorithm(ABC, Generic[State]):
    """Base class of federated systems: a server state, and exchanges per round that change it.

    The constructor builds nothing that is only needed for training; ``client_side`` does.

    Attributes:
        rounds: Largest number of rounds in a run.
        state_type: The dataclass that ``initial_state`` returns and a checkpoint holds.
        scored_every: Number of rounds from one scoring to the next, if the user sets none.
    """

    rounds: int
    state_type: type[State]
    scored_every: int = 1

    def is_scored(self, number: int, every: int | None) -> bool:
        """Return whether to score the state after round ``number``.

        ``every``: the user's interval, in rounds; None: ``scored_every``, and after the last round.
        """
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
        """Return the exchanges of all rounds, for a run in which no exchange fails."""
        return [self.exchanges(number, state) for number in range(self.rounds)]

    def has_converged(self, state: State) -> bool:
        """Return whether no further round would change the state, so that the run may end early."""
        return False

    def final_state(self, state: State) -> State:
        """Return the state that a run delivers, which may be of an earlier round than the last."""
        return state


class Epilogue(ABC):
    """Base class of exchanges after the last round that evaluate the final state."""

    @abstractmethod
    def client_works(self, context: ClientContext) -> Mapping[str, AnyClientWork]:
        """Return the clients' half of each exchange, by its name, for one process's clients."""

    @abstractmethod
    def begin(self, state: Any) -> Any:
        """Return the initial state of the evaluation of ``state``; None to skip its exchanges."""

    @abstractmethod
    def works(self, known: Any) -> Sequence[AnyServerWork]:
        """Return the server's half of each exchange, from the evaluation's state ``known``."""

    @abstractmethod
    def describe(self, known: Any) -> dict[str, object]:
        """Return the summary's results; ``known``: the evaluation's last state, None if skipped."""
