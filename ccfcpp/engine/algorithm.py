"""What a federated system must give for the engine to run it."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from ccfcpp.engine.client import Client
from ccfcpp.randomness import Randomness

State = TypeVar("State")


class RefusedUpdateError(ValueError):
    """A client's update cannot be used, or there is none; the message says why."""


class Exchange(Protocol[State]):
    """One trip down and up: the server broadcasts, clients work, the server aggregates.

    Messages and updates are dataclasses that ``ccfcpp.engine.payload.pack`` takes.
    """

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def broadcast(self, state: State) -> Any:
        """What goes down to every client that takes part."""
        ...

    def local_update(self, message: Any, client: Client, randomness: Randomness) -> Any:
        """The client's work on its own images. No I/O, no state but the client's memory.

        A memory that changes is replaced by a new one. ``RefusedUpdateError`` says that the client
        has no update that could be used.
        """
        ...

    def check(self, message: Any, update: Any) -> None:
        """Raise ``RefusedUpdateError`` where an update does not have the shapes it must have."""
        ...

    def aggregate(self, state: State, updates: Sequence[Any], randomness: Randomness) -> State:
        """The server's next state from at least one update, in ascending order of the clients."""
        ...

    def summarise(self, updates: Sequence[Any]) -> dict[str, float]:
        """Figures for the round's report, such as the mean loss."""
        ...


class Algorithm(Protocol[State]):
    """A federated system: a state, and for each round the exchanges that move it on."""

    @property
    def rounds(self) -> int:
        """Number of rounds in a whole run."""
        ...

    @property
    def state_type(self) -> type[State]:
        """The dataclass that ``initial_state`` gives and a checkpoint holds."""
        ...

    def initial_state(self, randomness: Randomness) -> State:
        """The server's state before the first round."""
        ...

    def exchanges(self, number: int, state: State) -> Sequence[Exchange[State]]:
        """The exchanges of round ``number``, in order."""
        ...
