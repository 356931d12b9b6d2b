"""The contract of an exchange: one trip down to the clients and up to the server.

An exchange has two halves that need not be in one process. The *server's work* says what goes down
and what becomes of the answers; the *clients' work* makes an answer of a message and of images that
never leave their holder. What both know is the ``Exchange``: its name, and the types of what
travels. A ``Task`` names the work that is wanted; from it and the configuration any process finds
its half.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.parts import Count, Form, Part, Sum
from ccfcpp.models.state import ModelState

State = TypeVar("State")
Message = TypeVar("Message")
Update = TypeVar("Update")

Figures = dict[str, float]
"""What a round's report says of an exchange, such as the mean loss."""


class RefusedUpdateError(ValueError):
    """A client's update cannot be used, or there is none; the message says why."""


class AbsentClientError(RefusedUpdateError):
    """A client is not there, or did not answer in time: nothing was refused."""


@dataclass(frozen=True)
class Task:
    """The work that a client is asked for: a small value that can be sent as JSON.

    Attributes:
        system: Name of the system that runs, such as ``ccfc++``.
        exchange: Name of the exchange.
        round: Number of the round, from 0.
        index: Place of the exchange in its round, from 0. A round may have one exchange twice.
        last: Whether the round is over with it.
        samples: Samples of all clients that are asked, less those that did not answer in the round
            before; 0 where nobody may know.
    """

    system: str
    exchange: str
    round: int
    index: int
    last: bool = False
    samples: int = 0


@dataclass(frozen=True)
class Nothing:
    """The message of an exchange in which clients need nothing from the server."""


@dataclass(frozen=True)
class Images:
    """How images enter the sums of an exchange, where each image has a part of its own.

    Attributes:
        share: With which probability an image is in them.
        batch: What sums ``of_batch`` are divided by: images in a step on average.
        largest: What no image's part of a sum exceeds anyhow, by the name of the sum.
        usual: How large an image's part is as a rule, by name; bounds count in these.
    """

    share: float = 1.0
    batch: float = 1.0
    largest: Mapping[str, float] = field(default_factory=dict)
    usual: Mapping[str, float] = field(default_factory=dict)


NOT_TOLD_APART = "what one image adds is not bounded"


@dataclass(frozen=True)
class Exchange(Generic[Message, Update]):
    """What both sides know of an exchange.

    Attributes:
        name: What tasks and reports call it.
        message: Type of what goes down, a dataclass that ``ccfcpp.engine.payload.pack`` takes.
        update: Type of what comes up, likewise.
        parts: What each part of an update means, by the name of its field; ``a/b`` is the part b of
            a field a. What is not declared is ``Opaque``.
        uses_memory: Whether clients need what they remember.
        travels: Whether messages travel. If not, all connected clients work by themselves, also
            those that are not available. What they give serves the report, and counts no bytes.
        images: How images enter the sums; or why their parts cannot be told apart, and what to
            change.
        follows: Whether it goes on with the exchange before it: only clients whose updates were
            accepted there take part.
        once: Whether it comes once before all others, so that its time says nothing of later ones.
        remembers_parts: Whether the server keeps each client's last part, for when it is absent.
        usual: How large a client's part is as a rule where all clients count alike, by name; bounds
            count in these.
    """

    name: str
    message: type[Message]
    update: type[Update]
    parts: Mapping[str, Part] = field(default_factory=dict)
    uses_memory: bool = False
    travels: bool = True
    images: Images | str = NOT_TOLD_APART
    follows: bool = False
    once: bool = False
    remembers_parts: bool = False
    usual: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_sum(self) -> bool:
        """Whether the server needs the total over clients alone."""
        return bool(self.parts) and all(isinstance(p, Sum | Count) for p in self.parts.values())


@runtime_checkable
class Addressed(Protocol):
    """A message of which each client gets a part of its own, of the same type."""

    def to(self, client: int) -> object:
        """Return the part for a client."""


def part_for(message: object, client: int) -> object:
    """Return the part of a message that a client gets."""
    return message.to(client) if isinstance(message, Addressed) else message


class ServerWork(ABC, Generic[State, Message, Update]):
    """The server's half of an exchange."""

    exchange: Exchange[Message, Update]

    def is_due(self, state: State) -> bool:
        """Return whether earlier exchanges gave what it needs; else the round leaves it out."""
        return True

    @abstractmethod
    def broadcast(self, state: State) -> Message:
        """Return what goes down to every client that takes part."""

    @abstractmethod
    def form(self, message: Message) -> Form:
        """Return the names, shapes and dtypes that an update must have."""

    def check(self, message: Message, update: Update, senders: Sequence[Member]) -> None:
        """Refuse an update that claims what cannot be so.

        Its type, its form and that its numbers are finite have been checked. The senders are known
        as the server knows them: one client, or those of a sum.

        Raises:
            RefusedUpdateError: It cannot be used.
        """

    def attributed(self, update: Update, senders: Sequence[int]) -> Update:
        """Mark whose an update is, where its aggregation asks for that; without noise alone."""
        return update

    def project_noisy(self, message: Message, update: Update) -> Update:
        """Return the update without noise that is nearest to one with noise, such as counts >= 0.

        It takes the place of ``check``; what clients have added to it was not checked.
        """
        return update

    @abstractmethod
    def aggregate(
        self, state: State, updates: Iterable[Update], randomness: Randomness
    ) -> tuple[State, Figures]:
        """Return the server's next state, and figures for the report.

        Args:
            state: The state so far.
            updates: At least one, by the size of the clients. They come while the clients work:
                what an aggregation does not keep is gone, so that memory does not grow with the
                number of clients.
            randomness: The source, set to the round and the server.
        """

    def local_model(self, update: Update) -> ModelState | None:
        """Return the local model in an update, where it is compared with the global one."""
        return None


class ClientWork(ABC, Generic[Message, Update]):
    """The clients' half of an exchange, for the clients of one process.

    Attributes:
        exchange: What both sides know.
        cohort: How many clients work side by side at most.
    """

    exchange: Exchange[Message, Update]
    cohort: int = 1

    @abstractmethod
    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Update | RefusedUpdateError]:
        """Do the work of a cohort of clients, each on its own images.

        It reads and writes no file and keeps nothing but the clients' memories; a memory that
        changes is replaced by a new one.

        Args:
            task: Which work this is.
            message: What ``broadcast`` gave.
            clients: The clients, in descending order of size.
            randomness: The source, set to the round; ``of_client`` gives each client's.

        Returns:
            An update for each client, which does not depend, up to rounding, on who else is there;
            or a ``RefusedUpdateError`` for one that has none that could be used.
        """

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update | None:
        """Return the sum of the clients' updates; None where it cannot be formed by them.

        The arguments are those of ``local_updates``.
        """
        return None


class SummedWork(ClientWork[Message, Update]):
    """The clients' half of an exchange whose updates are sums."""

    cohort = 10**6  # a sum has no cohorts: memory is bounded by what it is made of

    @abstractmethod
    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update:
        """Return the sum over some clients, one at least; see ``local_updates``."""

    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Update | RefusedUpdateError]:
        """Return the sum of each client by itself."""
        return [self.local_sum(task, message, [client], randomness) for client in clients]


def cohort_apart(work: "AnyClientWork") -> int:
    """Return how many clients work side by side where each one's update is wanted.

    Sums of single clients are formed one after the other: more of them would only be held at once.
    """
    return 1 if isinstance(work, SummedWork) else work.cohort


AnyExchange: TypeAlias = Exchange[Any, Any]
AnyServerWork: TypeAlias = ServerWork[Any, Any, Any]
AnyClientWork: TypeAlias = ClientWork[Any, Any]


@dataclass(frozen=True)
class ClientSide:
    """All that the clients of one process can be asked for.

    Attributes:
        works: The work of each exchange, by the exchange's name.
        cohort: How many clients are trained side by side; None where nothing is trained.
    """

    works: Mapping[str, AnyClientWork]
    cohort: int | None = None

    @staticmethod
    def of(*works: AnyClientWork, cohort: int | None = None) -> "ClientSide":
        """Arrange works by the names of their exchanges."""
        return ClientSide({work.exchange.name: work for work in works}, cohort)
