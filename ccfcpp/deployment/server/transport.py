"""Takes tasks to clients on other machines, and brings their updates back."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch

from ccfcpp.deployment.link.messages import (
    MessageError,
    Request,
    Response,
    deserialize,
    new_token,
    serialize,
    shown,
)
from ccfcpp.deployment.link.packet import MOST_PAYLOAD_BYTES, Packet
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AbsentClientError, Exchange, RefusedUpdateError, Task
from ccfcpp.engine.transport import Reply

Standing = Literal["away", "waiting", "training", "late"]
"""What the server knows of a client: not online; online, with nothing to do; at work; or at work
for longer than it was given."""

Watcher = Callable[[Member, Standing, Standing], None]
"""Takes a client, what it was, and what it is now."""


@dataclass(frozen=True)
class Undelivered:
    """What comes in place of an answer where a client's node has failed.

    Attributes:
        reason: In a few words; none of the client's.
    """

    reason: str


class Link(Protocol):
    """What carries packets: Flower's grid, or one of our own."""

    def online(self) -> Mapping[str, int]:
        """The nodes that are there, by the name under which their key was registered."""
        ...

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Send a packet.

        Args:
            node: Where to.
            packet: What.
            seconds: How long it, or the answer, may be on its way.

        Returns:
            By what to ask for the answer; None where the node is gone.
        """
        ...

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """The answer to a packet; None where there is none yet."""
        ...


@dataclass(frozen=True)
class Timeouts:
    """How long the server waits.

    Attributes:
        answer: Seconds for the answers to a task.
        poll: Seconds from one look for an answer to the next.
        grace: Seconds that an answer may be too late before it is given up: until then its client
            is at work, and is not asked for more.
    """

    answer: float = 600.0
    poll: float = 0.2
    grace: float = 3600.0

    @property
    def life(self) -> float:
        """Seconds after which nothing comes any more."""
        return self.answer + self.grace


@dataclass(frozen=True)
class _Asked:
    """A client that was asked for something, or why it could not be.

    Attributes:
        order: What for.
        ticket: By what to ask for the answer; None where nothing was sent.
        absence: Why nothing was sent.
    """

    order: Request
    ticket: str | None
    absence: str = ""


class Deployed:
    """Clients on other machines: the engine's ``Transport``.

    All of them work at the same time. What they send is taken one by one, in the order of the
    members, so that the sums are those of a run in one process, and no more than one is in memory.

    Args:
        link: What carries packets.
        spec: What clients have to know.
        run: The run's token, which stays the same when the run goes on.
        exchanges: All exchanges of the system, by name.
        device: Where updates go.
        timeouts: How long to wait.
        most_bytes: How large an update may be.
        pause: Called while nobody is there or nothing has come, with seconds; it may raise.
        watch: Called where a client's standing changes.

    Attributes:
        standings: How each client fares, by its number, for a table.
    """

    def __init__(
        self,
        link: Link,
        spec: RunSpec,
        run: str,
        exchanges: Mapping[str, Exchange[Any, Any]],
        device: torch.device,
        timeouts: Timeouts | None = None,
        most_bytes: int = MOST_PAYLOAD_BYTES,
        pause: Callable[[float], None] = time.sleep,
        watch: Watcher = lambda member, before, now: None,
    ) -> None:
        self.link = link
        self.spec = spec
        self.run = run
        self.exchanges = exchanges
        self.device = device
        self.timeouts = timeouts or Timeouts()
        self.most_bytes = most_bytes
        self.pause = pause
        self.watch = watch
        self.standings: dict[int, Standing] = {}
        self._accepted: dict[int, str] = {}
        self._kept: dict[int, str] = {}
        self._late: dict[int, tuple[str, float]] = {}

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Have some clients work; while none of them is online, wait."""
        exchange, payload = self.exchanges[task.exchange], serialize(message)
        online = self._online(members)
        asked = [self._ask(task, member, online.get(member.name), payload) for member in members]
        until = time.monotonic() + self.timeouts.answer
        for member, sent in zip(members, asked, strict=True):
            yield self._reply(exchange, member, sent, until)

    def save(self) -> dict[int, str]:
        """The versions that the server has accepted; clients have them on their disks."""
        return dict(self._accepted)

    def restore(self, versions: Mapping[int, str]) -> None:
        """Go on with other versions; a client that has lost its own starts anew."""
        self._accepted = dict(versions)
        self._kept = dict(versions)

    def settle(self) -> None:
        """Clients may forget what the checkpoint before this one names."""
        self._kept = dict(self._accepted)

    def _online(self, members: Sequence[Member]) -> Mapping[str, int]:
        """Who is there: one of the members at least."""
        while True:
            online = self.link.online()
            for member in members:
                there = self.standings.get(member.id, "away") != "away"
                if there != (member.name in online):
                    self._stands(member, "away" if there else "waiting")
            if not members or any(member.name in online for member in members):
                return online
            self.pause(self.timeouts.poll)

    def _ask(self, task: Task, member: Member, node: int | None, payload: bytes) -> _Asked:
        order = Request(
            kind="work",
            run=self.run,
            nonce=new_token(),
            spec=self.spec,
            client=member.id,
            exchange=task.exchange,
            round=task.round,
            index=task.index,
            last=task.last,
            remembered=self._accepted.get(member.id, ""),
            kept=self._kept.get(member.id, ""),
        )
        if self._is_busy(member.id):
            return _Asked(order, None, "it is still at work on what it was asked before")
        ticket = None
        if node is not None:
            packet = Packet(order.written(), payload)
            ticket = self.link.push(node, packet, self.timeouts.life)
        self._stands(member, "away" if ticket is None else "training")
        return _Asked(order, ticket, "it is not online" if ticket is None else "")

    def _is_busy(self, client: int) -> bool:
        """Whether an answer that was too late is still to come; if it has come, it is dropped."""
        if client not in self._late:
            return False
        ticket, until = self._late[client]
        if self.link.pull(ticket) is None and time.monotonic() < until:
            return True
        del self._late[client]
        return False

    def _reply(
        self, exchange: Exchange[Any, Any], member: Member, asked: _Asked, until: float
    ) -> Reply:
        if asked.ticket is None:
            return Reply(member.id, AbsentClientError(asked.absence))
        while (found := self.link.pull(asked.ticket)) is None:
            if time.monotonic() >= until:
                self._late[member.id] = asked.ticket, time.monotonic() + self.timeouts.grace
                self._stands(member, "late")
                reason = f"no answer within {self.timeouts.answer:g} s"
                return Reply(member.id, AbsentClientError(reason))
            self.pause(self.timeouts.poll)
        if isinstance(found, Undelivered):
            self._stands(member, "away")
            return Reply(member.id, AbsentClientError(found.reason))
        self._stands(member, "waiting")
        try:
            return self._read(exchange, member, asked.order, found)
        except MessageError as error:
            return Reply(member.id, RefusedUpdateError(str(error)))
        except RefusedUpdateError as refusal:
            return Reply(member.id, refusal)

    def _read(
        self, exchange: Exchange[Any, Any], member: Member, order: Request, found: Packet
    ) -> Reply:
        answer = Response.read(found.header)
        if answer.nonce != order.nonce:
            raise RefusedUpdateError("it answers another order")
        if answer.status == "lost":
            self._accepted.pop(member.id, None)
            raise RefusedUpdateError("what it remembered is gone: it starts anew")
        if answer.status == "failed":
            raise RefusedUpdateError("its work failed: its own log says why")
        if answer.status != "done":
            raise RefusedUpdateError(shown(answer.reason) or answer.status)
        update = deserialize(exchange.update, found.payload, self.device, self.most_bytes)
        if not answer.remembers:
            return Reply(member.id, update)
        return Reply(member.id, update, partial(self._accept, member.id, order.version))

    def _stands(self, member: Member, now: Standing) -> None:
        before = self.standings.get(member.id, "away")
        self.standings[member.id] = now
        if now != before:
            self.watch(member, before, now)

    def _accept(self, client: int, version: str) -> None:
        self._accepted[client] = version
