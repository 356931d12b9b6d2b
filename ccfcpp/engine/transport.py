"""The transport of tasks to clients, in this process or elsewhere."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member, Memory, sort_by_size
from ccfcpp.engine.exchange import AnyExchange, ClientSide, Task, cohort_without_sums
from ccfcpp.engine.memories import ClientMemories


def do_nothing() -> None:
    """Do nothing: the ``accept`` of a reply that does not change the client's local state."""


@dataclass(frozen=True)
class Reply:
    """The result of a task at one client, or at several as a sum or mean.

    Attributes:
        client: The client's number; of several, the first one's.
        update: Its update; or a ``RefusedUpdateError`` that says why there is none.
        accept: Replaces the client's local state by the new one; called if the server accepts the
            update, before the aggregation.
        others: The other clients in a sum.
        made_of: The replies from which the server, such as a defence, has made this one.
        noised: Whether noise was added; counts of images in the update are then not exact.
        is_checked: Whether the update has already been checked.
        bytes_up: Bytes that these clients have sent together; None: those of one update each.
        bytes_down: Bytes that they have received together; None: those of the message alone.
    """

    client: int
    update: object
    accept: Callable[[], None] = do_nothing
    others: tuple[int, ...] = ()
    made_of: tuple["Reply", ...] = ()
    noised: bool = False
    is_checked: bool = False
    bytes_up: int | None = None
    bytes_down: int | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        """The numbers of all clients in the reply."""
        return (self.client, *self.others)


class Transport(Protocol):
    """Interface that sends tasks to clients and returns their updates."""

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Send a task to some clients, and yield their replies.

        Yields:
            A reply for each client, in the order of ``members``, while later ones may still work.
            For a client that does not answer it is an ``AbsentClientError``.
        """

    def save(self) -> Mapping[int, str]:
        """Write all clients' local states, safe from a crash; return their versions by client."""

    def restore(self, versions: Mapping[int, str]) -> None:
        """Load the clients' local states of a checkpoint, by the versions that it names.

        Raises:
            UsageError: One of them is missing.
        """

    def settle(self) -> None:
        """Delete older local states, once a checkpoint names those that ``save`` returned."""


class InProcess:
    """Transport to clients in this process, which work in cohorts (together), one after another.

    Args:
        merges: Whether a cohort computes one update for all its clients if updates are sums. It is
            faster; but the server cannot tell clients apart, and results differ by rounding from
            clients in processes of their own.
        varies: Whether clients may be absent from a round; updates are then not merged if the
            server remembers each client's for such rounds (``Exchange.remembers_parts``).
    """

    def __init__(
        self,
        clients: Sequence[Client],
        side: ClientSide,
        memories: ClientMemories,
        randomness: Randomness,
        merges: bool = True,
        varies: bool = False,
    ) -> None:
        self.clients = {client.id: client for client in clients}
        self.side = side
        self.memories = memories
        self.randomness = randomness
        self.merges = merges
        self.varies = varies
        self.save = memories.save
        self.restore = memories.restore
        self.settle = memories.settle

    def sends_one_sum(self, exchange: AnyExchange) -> bool:
        """Return whether clients send one update for all of them in an exchange."""
        remembers = self.varies and exchange.remembers_parts
        return exchange.is_sum and self.merges and not remembers

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Run one cohort (clients that work together) after another, and yield their replies."""
        work = self.side.works[task.exchange]
        randomness = self.randomness.at_round(task.round)
        true = [self.clients[member.id].member for member in members]
        if true != [*members]:
            # Attackers report other sizes to the server; a cohort goes by the true ones.
            true = sort_by_size(true)
        merges = self.sends_one_sum(work.exchange)
        most = work.cohort if merges else cohort_without_sums(work)
        for first in range(0, len(true), most):
            cohort = [self.clients[m.id] for m in true[first : first + most]]
            if work.exchange.uses_memory:
                with section("client memories"):
                    for client in cohort:
                        client.memory = self.memories.take(client.id)
            before = {client.id: client.memory for client in cohort}
            answers: Sequence[tuple[Sequence[Client], object]]
            total = work.local_sum(task, message, cohort, randomness) if merges else None
            if total is not None:
                answers = [(cohort, total)]
            else:
                updates = work.local_updates(task, message, cohort, randomness)
                answers = [([c], update) for c, update in zip(cohort, updates, strict=True)]
            for together, update in answers:
                changed = {
                    client.id: client.memory
                    for client in together
                    if client.memory is not before[client.id]
                }
                for client in together:
                    client.memory = {}
                first_of, *others = (client.id for client in together)
                keep = partial(self._keep, changed, task) if changed else do_nothing
                yield Reply(first_of, update, keep, tuple(others))
            del before, answers, total, together, update, changed, keep

    def _keep(self, memories: Mapping[int, Memory], task: Task) -> None:
        with section("client memories"):
            for client, memory in memories.items():
                self.memories.keep(client, memory, f"{task.round}.{task.index}")
