"""What a federated system must give for the engine to run it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Crew
from ccfcpp.engine.exchange import ClientSide, ServerWork, State


class Algorithm(ABC, Generic[State]):
    """A federated system: a state, and for each round the exchanges that move it on.

    To make one builds nothing that trains: a process that only assigns images is light. A process
    that works for clients asks for the ``client_side``.

    Attributes:
        rounds: Number of rounds in a whole run, at most.
        state_type: The dataclass that ``initial_state`` gives and a checkpoint holds.
    """

    rounds: int
    state_type: type[State]

    @abstractmethod
    def initial_state(self, randomness: Randomness) -> State:
        """The server's state before the first round."""

    @abstractmethod
    def exchanges(self, number: int, state: State) -> Sequence[ServerWork[State, Any, Any]]:
        """The server's work in round ``number``, in order."""

    @abstractmethod
    def client_side(self, crew: Crew) -> ClientSide:
        """The work of the clients of one process.

        Args:
            crew: How many they are, and how large.
        """

    def has_converged(self, state: State) -> bool:
        """Whether no further round would change the state, so that the run may end early."""
        return False
