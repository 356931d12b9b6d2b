"""The interface of an exchange: one message to the clients, and their updates to the server.

An exchange has two halves that need not be in one process. ``ServerWork``, the server's half, makes
the message and aggregates the updates; ``ClientWork``, the clients' half, computes an update from
the message and from images that never leave the client. Both share the ``Exchange``: its name, and
the types of what is sent. A ``Task`` names the exchange; from it and the configuration any process
finds its half.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.update_format import Count, Part, Sum, UpdateFormat
from ccfcpp.models.state import ModelState

State = TypeVar("State")
Message = TypeVar("Message")
Update = TypeVar("Update")

Metrics = dict[str, float]
"""Metrics of an exchange for a round's report, such as the mean loss."""


class RefusedUpdateError(ValueError):
    """A client's update cannot be used, or there is none; the message says why."""


class AbsentClientError(RefusedUpdateError):
    """A client is not connected, or did not answer in time; nothing was refused."""


@dataclass(frozen=True)
class Task:
    """The work that the server asks clients for, by names and numbers that can be sent as JSON.

    Attributes:
        system: Name of the system that runs, such as ``ccfc++``.
        exchange: Name of the exchange.
        round: Number of the round, from 0.
        index: Place of the exchange in its round, from 0. A round may have one exchange twice.
        last: Whether it is the last of its round.
        samples: Number of samples of all clients that are asked, without those that did not answer
            in the round before; 0 if the number is secret.
    """

    system: str
    exchange: str
    round: int
    index: int
    last: bool = False
    samples: int = 0


@dataclass(frozen=True)
class Nothing:
    """Empty message, for an exchange in which clients need no data from the server."""


@dataclass(frozen=True)
class Images:
    """Sampling rate of images, and norm bounds of each one's contribution to an exchange's sums.

    Attributes:
        share: Probability that an image is in the sums.
        batch: Mean number of images in a step, the divisor of sums that are ``of_batch``.
        largest: Upper bound, which always holds, of the L2 norm of an image's contribution to a
            sum, by the name of the sum.
        usual: Usual norm of such a contribution, by name; configured bounds are multiples of it.
    """

    share: float = 1.0
    batch: float = 1.0
    largest: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)


UNBOUNDED_IMAGES = "what one image adds is not bounded"


@dataclass(frozen=True)
class Exchange(Generic[Message, Update]):
    """Declaration of an exchange (a message to clients and their updates), which both sides share.

    Attributes:
        name: Its name in tasks and reports.
        message: Type of the message, a dataclass that ``ccfcpp.engine.payload.pack`` takes.
        update: Type of an update, likewise.
        parts: Meaning of each part (tensors) of an update, by the name of its field; ``a/b`` is the
            part b of a field a. A part that is not declared is ``Opaque``.
        uses_memory: Whether clients need their local states (``Client.memory``).
        travels: Whether messages are sent. If not, all connected clients compute by themselves,
            even if they are not available; the report has their metrics, and no bytes are counted.
        images: Sampling of images, and norms of their contributions to the sums; or a text that
            says why these have no bound, and what to change.
        follows: Whether it continues the exchange before it, so that only clients whose updates
            were accepted there take part.
        once: Whether it takes place once, before all others; progress estimates leave it out.
        remembers_parts: Whether the server stores what each client sent last, for rounds in which
            the client is absent.
        usual: Usual norm of a client's contribution to a part if all clients have equal weight, by
            name; configured bounds are multiples of it.
    """

    name: str
    message: type[Message]
    update: type[Update]
    parts: Mapping[str, Part] = field(default_factory=dict)
    uses_memory: bool = False
    travels: bool = True
    images: Images | str = UNBOUNDED_IMAGES
    follows: bool = False
    once: bool = False
    remembers_parts: bool = False
    usual: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_sum(self) -> bool:
        """Whether updates are sums and counts alone: the server needs only totals over clients."""
        return bool(self.parts) and all(isinstance(p, Sum | Count) for p in self.parts.values())


@runtime_checkable
class Addressed(Protocol):
    """Interface of a message with different content, of the same type, for each client."""

    def to(self, client: int) -> object:
        """Return the content for one client, given its number."""


def part_for(message: object, client: int) -> object:
    """Return what one client gets of a message: its content if ``Addressed``, else all of it."""
    return message.to(client) if isinstance(message, Addressed) else message


class ServerWork(ABC, Generic[State, Message, Update]):
    """Base class of the server's half of an exchange: the message, and the use of the updates."""

    exchange: Exchange[Message, Update]

    def is_due(self, state: State) -> bool:
        """Return whether the state has what the exchange needs; otherwise it is skipped."""
        return True

    @abstractmethod
    def broadcast(self, state: State) -> Message:
        """Return the message to every client that takes part."""

    @abstractmethod
    def update_format(self, message: Message) -> UpdateFormat:
        """Return the tensor names, shapes and dtypes that an update must have."""

    def check(self, message: Message, update: Update, senders: Sequence[Member]) -> None:
        """Refuse an update with impossible values.

        Its type and format have been checked, and its values are finite.

        Args:
            message: The message that the senders got.
            update: The update.
            senders: The client that sent it, or the clients whose sum it is.

        Raises:
            RefusedUpdateError: The update cannot be used.
        """

    def attributed(self, update: Update, senders: Sequence[int]) -> Update:
        """Return the update, with its senders' numbers if needed; not called for noisy updates."""
        return update

    def project_noisy(self, message: Message, update: Update) -> Update:
        """Return the valid update nearest to one with noise, such as one with counts ≥ 0.

        It is called in place of ``check``. By default the update is returned unchanged.
        """
        return update

    @abstractmethod
    def aggregate(
        self, state: State, updates: Iterable[Update], randomness: Randomness
    ) -> tuple[State, Metrics]:
        """Return the server's next state, and metrics for the report.

        Args:
            state: The current state.
            updates: At least one, those of large clients first. They come while other clients still
                work; store none, so that memory does not grow with the number of clients.
            randomness: Source of random numbers, set to the round and the server.
        """

    def without_updates(self, state: State) -> State:
        """Return the state after clients were asked, and none of their updates was accepted."""
        return state

    def local_model(self, update: Update) -> ModelState | None:
        """Return the local model in an update, to compare it with the global one, or None."""
        return None


class ClientWork(ABC, Generic[Message, Update]):
    """Base class of the clients' half of an exchange: it computes the updates of one process.

    Attributes:
        exchange: The declaration that server and clients share.
        cohort: Largest number of clients that work side by side.
    """

    exchange: Exchange[Message, Update]
    cohort: int = 1

    @abstractmethod
    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Update | RefusedUpdateError]:
        """Compute the updates of some clients, each from its own images.

        Reads and writes no file, and stores nothing but ``Client.memory``, which is replaced by a
        new dictionary and never changed in place.

        Args:
            task: The task.
            message: Result of ``ServerWork.broadcast``.
            clients: The clients, in descending order of size.
            randomness: Source of random numbers, set to the round; ``of_client`` gives each
                client's.

        Returns:
            An update of each client, which does not depend, up to rounding, on the other clients;
            a ``RefusedUpdateError`` in place of one that cannot be used.
        """

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update | None:
        """Return the sum of the clients' updates, or None if updates are no sums.

        The arguments are those of ``local_updates``.
        """
        return None


class SummedWork(ClientWork[Message, Update]):
    """Base class of the clients' half of an exchange whose updates are sums."""

    cohort = 10**6  # all clients: a sum needs no memory for each of them

    @abstractmethod
    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update:
        """Return the sum over some clients, at least one; see ``local_updates``."""

    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Update | RefusedUpdateError]:
        """Return the sum of each client by itself."""
        return [self.local_sum(task, message, [client], randomness) for client in clients]


@dataclass(frozen=True)
class EachClient(ClientWork[Message, Update]):
    """The clients' half of an exchange in which each client answers by itself.

    Attributes:
        exchange: The exchange.
        answer: Function of the message, a client and its source of random numbers.
    """

    exchange: Exchange[Message, Update]
    answer: Callable[[Message, Client, Randomness], Update | RefusedUpdateError]

    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Update | RefusedUpdateError]:
        """Return each client's answer."""
        return [self.answer(message, one, randomness.of_client(one.id)) for one in clients]


def cohort_without_sums(work: "AnyClientWork") -> int:
    """Return how many clients work side by side if the update of each one is needed.

    It is 1 for sums: to compute several at once would only take more memory.
    """
    return 1 if isinstance(work, SummedWork) else work.cohort


AnyExchange: TypeAlias = Exchange[Any, Any]
AnyServerWork: TypeAlias = ServerWork[Any, Any, Any]
AnyClientWork: TypeAlias = ClientWork[Any, Any]


@dataclass(frozen=True)
class ClientSide:
    """The clients' half of all exchanges of a system, for the clients of one process.

    Attributes:
        works: The ``ClientWork`` of each exchange, by the exchange's name.
        cohort: Number of clients trained side by side; None if nothing is trained.
    """

    works: Mapping[str, AnyClientWork]
    cohort: int | None = None

    @staticmethod
    def of(*works: AnyClientWork, cohort: int | None = None) -> "ClientSide":
        """Return a ``ClientSide`` with these works, each by the name of its exchange."""
        return ClientSide({work.exchange.name: work for work in works}, cohort)
