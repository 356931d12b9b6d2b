"""What a federated system must give for the engine to run it."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client

State = TypeVar("State")
Figures = dict[str, float]
"""What a round's report says of an exchange, such as the mean loss."""


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

    @property
    def cohort(self) -> int:
        """How many clients work side by side in one process."""
        ...

    @property
    def uses_memory(self) -> bool:
        """Whether clients need what they remember."""
        ...

    @property
    def travels(self) -> bool:
        """Whether messages travel.

        Else all connected clients work by themselves, also those that are not available; what they
        give serves the report, and counts no bytes.
        """
        ...

    def broadcast(self, state: State) -> Any:
        """What goes down to every client that takes part."""
        ...

    def local_updates(
        self, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Any]:
        """The work of a cohort of clients, each on its own images.

        No I/O, no state but the clients' memories; a memory that changes is replaced by a new one.

        Args:
            message: What ``broadcast`` gave.
            clients: The clients, in descending order of size.
            randomness: The source, set to the round; ``of_client`` gives each client's.

        Returns:
            An update for each client, which does not depend, up to rounding, on who else is there;
            or a ``RefusedUpdateError`` for one that has none that could be used.
        """
        ...

    def check(self, message: Any, update: Any) -> None:
        """Raise ``RefusedUpdateError`` where an update does not have the shapes it must have."""
        ...

    def aggregate(
        self, state: State, updates: Iterable[Any], randomness: Randomness
    ) -> tuple[State, Figures]:
        """The server's next state, and figures for the report.

        Args:
            state: The state so far.
            updates: At least one, by the size of the clients. They come while the clients work:
                what an aggregation does not keep is gone, so that memory does not grow with the
                number of clients.
            randomness: The source, set to the round and the server.
        """
        ...


class Algorithm(Protocol[State]):
    """A federated system: a state, and for each round the exchanges that move it on."""

    @property
    def rounds(self) -> int:
        """Number of rounds in a whole run, at most."""
        ...

    def has_converged(self, state: State) -> bool:
        """Whether no further round would change the state, so that the run may end early."""
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
