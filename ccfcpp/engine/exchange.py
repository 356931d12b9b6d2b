"""The interface of an exchange: one message to the clients, and their updates to the server.

An exchange has two halves that need not be in one process. The *server's work* makes the message
and processes the updates; the *clients' work* makes an update of the message and of images that
never leave the client. Both share the ``Exchange``: its name, and the types of what is sent. A
``Task`` names the work that is wanted; from it and the configuration any process finds its half.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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
    """The work that a client is asked for: a small value that can be sent as JSON.

    Attributes:
        system: Name of the system that runs, such as ``ccfc++``.
        exchange: Name of the exchange.
        round: Number of the round, from 0.
        index: Place of the exchange in its round, from 0. A round may have one exchange twice.
        last: Whether it is the last of its round.
        samples: Samples of all clients that are asked, without those that did not answer in the
            round before; 0 if the number is secret.
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
    """Sampling rate and norm bounds of each image's contribution to the sums of an exchange.

    Attributes:
        share: Probability that an image is in the sums.
        batch: Divisor of sums that are ``of_batch``: images in a step on average.
        largest: Upper bound of an image's part of a sum that always holds, by the name of the sum.
        usual: Usual size of an image's part, by name; bounds are multiples of it.
    """

    share: float = 1.0
    batch: float = 1.0
    largest: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)


UNBOUNDED_IMAGES = "what one image adds is not bounded"


@dataclass(frozen=True)
class Exchange(Generic[Message, Update]):
    """The declaration of an exchange, which server and clients share.

    Attributes:
        name: Its name in tasks and reports.
        message: Type of the message, a dataclass that ``ccfcpp.engine.payload.pack`` takes.
        update: Type of an update, likewise.
        parts: Meaning of each part of an update, by the name of its field; ``a/b`` is the part b of
            a field a. What is not declared is ``Opaque``.
        uses_memory: Whether clients need their memories.
        travels: Whether messages are sent. If not, all connected clients work by themselves, also
            those that are not available. Their results serve the report, and count no bytes.
        images: The images' sampling and sizes; or why their parts cannot be told apart, and what to
            change.
        follows: Whether it continues the exchange before it, so that only clients whose updates
            were accepted there take part.
        once: Whether it comes once before all others, so that its time says nothing of later ones.
        remembers_parts: Whether the server stores each client's last part, for rounds in which the
            client is absent.
        usual: Usual size of a client's part if all clients count alike, by name; bounds are
            multiples of it.
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
        """Whether the server needs only the total over clients."""
        return bool(self.parts) and all(isinstance(p, Sum | Count) for p in self.parts.values())


@runtime_checkable
class Addressed(Protocol):
    """Interface of a message that holds a different part, of the same type, for each client."""

    def to(self, client: int) -> object:
        """Return the part for a client."""


def part_for(message: object, client: int) -> object:
    """Return the part of a message that a client gets."""
    return message.to(client) if isinstance(message, Addressed) else message


class ServerWork(ABC, Generic[State, Message, Update]):
    """Base class of the server's half of an exchange."""

    exchange: Exchange[Message, Update]

    def is_due(self, state: State) -> bool:
        """Return whether the state has what the exchange needs; if not, it is skipped."""
        return True

    @abstractmethod
    def broadcast(self, state: State) -> Message:
        """Return the message to every client that takes part."""

    @abstractmethod
    def update_format(self, message: Message) -> UpdateFormat:
        """Return the tensor names, shapes and dtypes that an update must have."""

    def check(self, message: Message, update: Update, senders: Sequence[Member]) -> None:
        """Refuse an update with impossible values.

        Its type, its form and that its numbers are finite have been checked. The senders are known
        as the server knows them: one client, or those of a sum.

        Raises:
            RefusedUpdateError: It cannot be used.
        """

    def attributed(self, update: Update, senders: Sequence[int]) -> Update:
        """Add the senders' numbers to an update that needs them; not called for noisy sums."""
        return update

    def project_noisy(self, message: Message, update: Update) -> Update:
        """Return the possible update nearest to one with noise, such as one with counts >= 0.

        It takes the place of ``check``; what clients have added to it was not checked.
        """
        return update

    @abstractmethod
    def aggregate(
        self, state: State, updates: Iterable[Update], randomness: Randomness
    ) -> tuple[State, Metrics]:
        """Return the server's next state, and metrics for the report.

        Args:
            state: The current state.
            updates: At least one, by the size of the clients. They come while the clients work, and
                each is deleted unless the aggregation stores it, so that memory does not grow with
                the number of clients.
            randomness: The source, set to the round and the server.
        """

    def local_model(self, update: Update) -> ModelState | None:
        """Return the local model in an update, to compare it with the global one; else None."""
        return None


class ClientWork(ABC, Generic[Message, Update]):
    """Base class of the clients' half of an exchange, for the clients of one process.

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
        """Do the work of a cohort of clients, each on its own images.

        It reads and writes no file and stores nothing but the clients' memories; a memory that
        changes is replaced by a new one.

        Args:
            task: The task.
            message: Result of ``broadcast``.
            clients: The clients, in descending order of size.
            randomness: The source, set to the round; ``of_client`` returns each client's.

        Returns:
            An update for each client, which does not depend, up to rounding, on the other clients;
            or a ``RefusedUpdateError`` for a client without a usable update.
        """

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update | None:
        """Return the sum of the clients' updates; None if updates are no sums.

        The arguments are those of ``local_updates``.
        """
        return None


class SummedWork(ClientWork[Message, Update]):
    """Base class of the clients' half of an exchange whose updates are sums."""

    cohort = 10**6  # a sum has no cohorts: memory is bounded by what it is made of

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


def cohort_without_sums(work: "AnyClientWork") -> int:
    """Return how many clients work side by side if each one's update is needed.

    Sums of single clients are computed one after the other, since more of them would take memory
    only.
    """
    return 1 if isinstance(work, SummedWork) else work.cohort


AnyExchange: TypeAlias = Exchange[Any, Any]
AnyServerWork: TypeAlias = ServerWork[Any, Any, Any]
AnyClientWork: TypeAlias = ClientWork[Any, Any]


@dataclass(frozen=True)
class ClientSide:
    """All work that the clients of one process can be asked for.

    Attributes:
        works: The work of each exchange, by the exchange's name.
        cohort: Number of clients trained side by side; None if nothing is trained.
    """

    works: Mapping[str, AnyClientWork]
    cohort: int | None = None

    @staticmethod
    def of(*works: AnyClientWork, cohort: int | None = None) -> "ClientSide":
        """Return works by the names of their exchanges."""
        return ClientSide({work.exchange.name: work for work in works}, cohort)
