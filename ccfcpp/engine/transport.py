"""How tasks reach clients: the loop does not know where they are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member, Memory, by_size
from ccfcpp.engine.exchange import ClientSide, Task, cohort_apart
from ccfcpp.engine.memories import ClientMemories


def _nothing() -> None:
    """Do nothing: the client's memory has not changed."""


@dataclass(frozen=True)
class Reply:
    """What came of a task at one client, or at several whose sum or mean it is.

    Attributes:
        client: The client's number; of several, the first one's.
        update: What it sent; or a ``RefusedUpdateError`` that says why there is nothing.
        accept: To be called where the server accepts the update: what the client remembers now
            becomes its memory. Where it is not called, the memory stays at the version before.
            It is called before the aggregation, which takes every update that was accepted.
        others: The other clients in a sum.
        made_of: The replies that a stage at the server has made this one of.
        noised: Whether noise was added, after which numbers are no longer those of images.
        is_checked: Whether a stage has checked it already.
        bytes_up: What these clients have sent together, where that is not an update each.
        bytes_down: What they have received together, where that is not the message alone.
    """

    client: int
    update: object
    accept: Callable[[], None] = _nothing
    others: tuple[int, ...] = ()
    made_of: tuple["Reply", ...] = ()
    noised: bool = False
    is_checked: bool = False
    bytes_up: int | None = None
    bytes_down: int | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        """All clients whose reply it is."""
        return (self.client, *self.others)


class Transport(Protocol):
    """Takes tasks to clients, and brings their updates back."""

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Have some clients work.

        Yields:
            A reply for each client, in the order of ``members``, while later ones may still work.
            For a client that does not answer it is an ``AbsentClientError``.
        """

    def save(self) -> Mapping[int, str]:
        """Make all memories outlast a crash; the name of each one's version, for a checkpoint."""

    def restore(self, versions: Mapping[int, str]) -> None:
        """Go on with the memories of a checkpoint.

        Raises:
            UsageError: One of them is missing.
        """

    def settle(self) -> None:
        """Remove other versions: a checkpoint names what ``save`` gave."""


class InProcess:
    """Clients in this process, a cohort of them side by side.

    Args:
        merges: Whether clients whose updates are sums send one for all of them. It is faster; but
            the server then cannot tell them apart, and the last digits are not those of clients in
            processes of their own.
        varies: Whether clients may be absent from a round: no updates are merged then of which the
            server remembers parts.
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

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Have cohort after cohort work; while one does, nothing of the one before is held."""
        work = self.side.works[task.exchange]
        randomness = self.randomness.at_round(task.round)
        true = [self.clients[member.id].member for member in members]
        if true != [*members]:
            # The server was told other sizes; a cohort goes by those that are true.
            true = by_size(true)
        remembers = self.varies and work.exchange.remembers_parts
        merges = work.exchange.is_sum and self.merges and not remembers
        most = work.cohort if merges else cohort_apart(work)
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
                keep = partial(self._keep, changed, task) if changed else _nothing
                yield Reply(first_of, update, keep, tuple(others))
            del before, answers, total, together, update, changed, keep

    def _keep(self, memories: Mapping[int, Memory], task: Task) -> None:
        with section("client memories"):
            for client, memory in memories.items():
                self.memories.keep(client, memory, f"{task.round}.{task.index}")
