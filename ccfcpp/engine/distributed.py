"""One run in several processes: each has a share of the clients, and the first is the server, too.

The first process runs the server's half of every exchange, and the work of its own clients; the
others do the work of theirs, as its messages ask for it. Updates that add up are summed in each
process, and over all of them by one collective. Others are sent one by one, and reach the server in
the order that they have in one process.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.torchrun import process_count
from ccfcpp.engine.client import Member, Memory, sort_by_size
from ccfcpp.engine.exchange import (
    AnyClientWork,
    RefusedUpdateError,
    SummedWork,
    Task,
)
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.processes import EndedProcessError, Facts, Packet, Processes, processes
from ccfcpp.engine.transport import InProcess, Reply

T = TypeVar("T")
_MOST_UNCONFIRMED = 16
"""Updates after which a process waits to be told which of them were accepted: until then it holds
what their clients would remember."""
Follow = Callable[[Facts], InProcess]
"""Makes the clients of a process that is not the first, when a run begins."""


def share_out(members: Iterable[Member], processes: int) -> dict[int, int]:
    """Assign each client to a process, so that all processes have about as many samples.

    Returns:
        The number of a process by the number of a client.

    Example:
        >>> sizes = {0: 10, 1: 40, 2: 20}
        >>> share_out([Member(n, f"client {n}", size) for n, size in sizes.items()], 2)
        {1: 0, 2: 1, 0: 1}
    """
    loads, owners = [0] * processes, dict[int, int]()
    for member in sort_by_size(members):
        least = loads.index(min(loads))
        loads[least] += max(1, member.samples)
        owners[member.id] = least
    return owners


_led: ContextVar[Processes | None] = ContextVar("led", default=None)


def current_processes() -> Processes | None:
    """Return the processes that this one leads; None if there is only one.

    Raises:
        UsageError: There are others, which do not follow.
    """
    if (led := _led.get()) is None and process_count() > 1:
        raise UsageError(
            "torchrun has started several processes, and this needs one: use ccfcpp.run or a "
            "command, or leave torchrun out"
        )
    return led


def run_in_first(lead: Callable[[], T], follow: Follow) -> T:
    """Call a function in the first process, while the others do the work of their clients.

    In a single process it is the function alone.

    Args:
        lead: Runs something, and returns values that JSON can hold.
        follow: Makes the clients of another process.

    Returns:
        What ``lead`` returns, in all processes.

    Raises:
        EndedProcessError: This process is not the first, in which the function has failed.
    """
    if process_count() == 1 or _led.get() is not None:
        return lead()
    group = processes()
    if group.rank > 0:
        result: T = _Follower(group, follow).run_commands()
        return result
    token = _led.set(group)
    try:
        result = lead()
    except Exception:
        if group.waits:
            group.broadcast(Packet({"do": "fail"}))
        raise
    finally:
        _led.reset(token)
    group.broadcast(Packet({"do": "return", "result": result}))
    return result


class SharedMemories(ClientMemories):
    """The memories of all clients, as the first process sees them; most lie in other processes."""

    def __init__(
        self,
        device: torch.device,
        budget: int,
        folder: Path | None,
        group: Processes,
        members: Iterable[Member],
    ) -> None:
        super().__init__(device, budget, folder)
        self.group, self.folder = group, folder
        self.owners = share_out(members, group.count)
        self._accepted: list[int] = []
        self._names: set[str] = set()

    def command(
        self, do: str, tensors: Mapping[str, Tensor] | None = None, **facts: object
    ) -> None:
        """Tell the other processes to do something, and which clients' updates were accepted."""
        accepted, self._accepted = self._accepted, []
        self.group.broadcast(Packet({"do": do, "accepted": accepted, **facts}, tensors or {}))

    def accept(self, clients: Iterable[int]) -> None:
        """Note that updates were accepted, of which the next command tells the other processes."""
        self._accepted += clients

    def confirm(self, rank: int) -> None:
        """Tell one process which of its updates were accepted since the last message about them."""
        told = [client for client in self._accepted if self.owners[client] == rank]
        self._accepted = [client for client in self._accepted if self.owners[client] != rank]
        self.group.send(Packet({"accepted": told}), rank)

    def take(self, client: int) -> Memory:
        """Return a client's memory, wherever it lies."""
        owner = self.owners[client]
        if owner == 0:
            return super().take(client)
        self.command("memory", client=client)
        found = self.group.receive(owner).tensors
        return {name: tensor.to(self.device) for name, tensor in found.items()}

    def save(self) -> dict[int, str]:
        """Write all memories to files that survive a crash; return their names for a checkpoint."""
        self.command("save")
        files = super().save()
        for other in range(1, self.group.count):
            files |= _numbered(self.group.receive(other).facts)
        self._names = set(files.values())
        return files

    def restore(self, files: Mapping[int, str], named: Iterable[str] = ()) -> None:
        """Load the memories that a checkpoint names, each in the process of its client."""
        self._names = {*files.values(), *named}
        self.command("restore", files=files)
        super().restore({n: f for n, f in files.items() if self.owners.get(n) == 0}, self._names)

    def settle(self, named: Iterable[str] = ()) -> None:
        """Delete older files, once a checkpoint has the names that ``save`` returned."""
        self.command("settle", names=sorted(self._names.union(named)))
        super().settle(self._names.union(named))


def _numbered(files: Mapping[str, Any]) -> dict[int, str]:
    """Return names of files by number, after JSON has made the numbers strings."""
    return {int(number): name for number, name in files.items()}


class Distributed:
    """The transport from the first process to all clients.

    Args:
        own: The clients of this process.
        members: All clients.
        memories: The memories of all clients.
        run: What the other processes need to make theirs.
    """

    def __init__(
        self, own: InProcess, members: Iterable[Member], memories: SharedMemories, run: Facts
    ) -> None:
        self.own, self.memories, self.group = own, memories, memories.group
        self.members = {member.id: member for member in members}
        self._received = Counter[int]()
        self.save, self.restore, self.settle = memories.save, memories.restore, memories.settle
        folder = None if memories.folder is None else str(memories.folder)
        memories.command("begin", run=run, memories=folder)

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Send a task to all processes, and yield replies in the order of a single process."""
        work = self.own.side.works[task.exchange]
        # Attackers report other sizes to the server; the order goes by the true ones.
        order = sort_by_size(self.members[member.id] for member in members)
        ranks = [self.memories.owners[member.id] for member in order]
        is_sum = isinstance(work, SummedWork) and self.own.sends_one_sum(work.exchange)
        pools = is_sum and len({*ranks}) == self.group.count
        asked = {"task": vars(task), "members": [member.id for member in order], "pools": pools}
        with section("processes: message"):
            self.memories.command("work", pack(message), **asked)
        self.group.waits = False
        self._received.clear()
        mine = [member for member, rank in zip(order, ranks, strict=True) if rank == 0]
        replies = self.own.deliver(task, message, mine)
        if pools:
            yield self._reduce(next(replies), order)
        else:
            left = {member.id: rank for member, rank in zip(order, ranks, strict=True)}
            yield from self._collect_in_order(replies, work, left)

    def _reduce(self, own: Reply, order: Sequence[Member]) -> Reply:
        """Add the sums of all processes to one reply for all clients."""
        with section("processes: sums"):
            total = unpack(type(own.update), self.group.sum_in_first(pack(own.update)))
        self.group.waits = True
        first, *others = clients = [member.id for member in order]

        def accept() -> None:
            own.accept()
            self.memories.accept(clients)

        return Reply(first, total, accept, tuple(others))

    def _collect_in_order(
        self, replies: Iterator[Reply], work: AnyClientWork, left: dict[int, int]
    ) -> Iterator[Reply]:
        """Yield the replies in the order of ``left``, the ranks of the clients' processes."""
        while left:
            rank = next(iter(left.values()))
            reply = next(replies) if rank == 0 else self._receive(rank, work)
            self._remove(reply, left)
            try:
                yield reply
            except GeneratorExit:
                # Nobody wants the rest, which is on its way.
                while other := next(filter(None, left.values()), 0):
                    self._remove(self._receive(other, work), left)
                raise

    def _remove(self, reply: Reply, left: dict[int, int]) -> None:
        """Remove the clients of a reply from those that are awaited."""
        for client in reply.clients:
            del left[client]
        self.group.waits = not any(left.values())

    def _receive(self, rank: int, work: AnyClientWork) -> Reply:
        if self._received[rank] and self._received[rank] % _MOST_UNCONFIRMED == 0:
            self.memories.confirm(rank)
        self._received[rank] += 1
        with section("processes: updates"):
            packet = self.group.receive(rank)
        first, *others = clients = packet.facts["clients"]
        if (why := packet.facts["why"]) is not None:
            return Reply(first, RefusedUpdateError(why), others=tuple(others))
        update = _unpacked(work.exchange.update, packet, self.memories.device)
        return Reply(first, update, partial(self.memories.accept, clients), tuple(others))


def _unpacked(kind: type[Any], packet: Packet, device: torch.device) -> Any:
    return unpack(kind, {name: tensor.to(device) for name, tensor in packet.tensors.items()})


class _Follower:
    """A process that is not the first, and does what the first one tells it."""

    def __init__(self, group: Processes, follow: Follow) -> None:
        self.group, self.follow = group, follow
        self.transport: InProcess | None = None
        self.unaccepted: dict[int, Reply] = {}

    def run_commands(self) -> Any:
        """Do what comes until the first process has its result, and return that.

        Raises:
            EndedProcessError: The first process has failed.
        """
        while (packet := self.group.broadcast()).facts["do"] not in ("return", "fail"):
            self._execute(packet)
        if packet.facts["do"] == "fail":
            raise EndedProcessError("the first process of the run has failed")
        return packet.facts["result"]

    def _execute(self, packet: Packet) -> None:
        facts = packet.facts
        self._accept(facts["accepted"])
        self.unaccepted.clear()
        if facts["do"] == "begin":
            self.transport = None  # What it holds is free before others' data are read.
            self.transport = self.follow(facts)
        elif facts["do"] == "work":
            self._work(packet)
        else:
            self._handle_memories(facts)

    def _accept(self, clients: Iterable[int]) -> None:
        """Let clients remember what they sent; replies of others wait for a later message."""
        for client in clients:
            if reply := self.unaccepted.pop(client, None):
                reply.accept()

    @property
    def _clients(self) -> InProcess:
        if self.transport is None:
            raise FederationError("work has come before a run has begun")
        return self.transport

    def _work(self, packet: Packet) -> None:
        """Do a task, and send the updates to the first process."""
        here, facts = self._clients, packet.facts
        task = Task(**facts["task"])
        message = _unpacked(
            here.side.works[task.exchange].exchange.message, packet, here.memories.device
        )
        members = [here.clients[n].member for n in facts["members"] if n in here.clients]
        for number, reply in enumerate(here.deliver(task, message, members)):
            update, why = reply.update, None
            if number and number % _MOST_UNCONFIRMED == 0:
                self._accept(self.group.receive(0).facts["accepted"])
            self.unaccepted[reply.client] = Reply(reply.client, None, reply.accept)
            if facts["pools"]:
                self.group.sum_in_first(pack(update))
                continue
            if isinstance(update, RefusedUpdateError):
                why = str(update)
            told = {"clients": reply.clients, "why": why}
            self.group.send(Packet(told, {} if why is not None else pack(update)))

    def _handle_memories(self, facts: Facts) -> None:
        """Read, save, restore or delete memories of this process's clients."""
        here = self._clients
        memories = here.memories
        if facts["do"] == "memory":
            if facts["client"] in here.clients:
                self.group.send(Packet({}, memories.take(facts["client"])))
        elif facts["do"] == "save":
            self.group.send(Packet(memories.save()))
        elif facts["do"] == "restore":
            files = _numbered(facts["files"])
            own = {number: name for number, name in files.items() if number in here.clients}
            memories.restore(own, files.values())
        else:
            memories.settle(facts["names"])
