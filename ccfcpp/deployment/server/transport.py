"""The engine's transport to clients on other machines."""

import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import torch

from ccfcpp.deployment.link.messages import (
    MessageError,
    Request,
    Response,
    deserialize,
    new_token,
    serialize,
)
from ccfcpp.deployment.link.packet import Packet, Undelivered
from ccfcpp.deployment.link.run_spec import RunSpec
from ccfcpp.deployment.server.channel import Channel, Standing
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import (
    AbsentClientError,
    Addressed,
    Exchange,
    RefusedUpdateError,
    Task,
)
from ccfcpp.engine.transport import Reply

_Asked = tuple[Request, str] | AbsentClientError
"""A request with the ticket for its response, or why nothing was sent."""


def _never() -> bool:
    return False


@dataclass(eq=False)
class Deployed:
    """Transport to clients on other machines, which work at the same time.

    Their responses are read one by one, in the order of the members. So sums are those of a run in
    one process, and only one update is in memory at a time.

    Attributes:
        run: Token of the run; a resumed run keeps it.
        session: How often the run was resumed.
        stopped: Whether the run was asked to stop.
        patience: Time to wait while no asked client is available: without limit, until the last
            round is over.
        standings: The standing of each client, by its number.
    """

    channel: Channel
    spec: RunSpec
    run: str
    exchanges: Mapping[str, Exchange[Any, Any]]
    device: torch.device
    session: int = 0
    stopped: Callable[[], bool] = field(default_factory=lambda: _never, init=False)
    patience: float = field(default=math.inf, init=False)
    standings: dict[int, Standing] = field(default_factory=dict, init=False)
    _accepted: dict[int, str] = field(default_factory=dict, init=False)
    _kept: dict[int, str] = field(default_factory=dict, init=False)
    _late: dict[int, tuple[str, float]] = field(default_factory=dict, init=False)

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Send a task to some clients and yield their replies; wait while none is available."""
        exchange, online = self.exchanges[task.exchange], self._once_one_is_free(members)
        payloads = _payloads(message, members)
        asked = [
            self._ask(task, member, online.get(member.name), payload)
            for member, payload in zip(members, payloads, strict=True)
        ]
        until = time.monotonic() + self.channel.timeouts.answer
        for member, sent in zip(members, asked, strict=True):
            yield self._reply(exchange, member, sent, until)

    def heed(self, stopped: Callable[[], bool]) -> None:
        """Set a function that tells whether the run was asked to stop."""
        self.stopped = stopped

    def wait_at_most(self, seconds: float) -> None:
        """Limit the time to wait while no asked client is available."""
        self.patience = seconds

    def take_over(self, other: "Deployed") -> None:
        """Copy another transport's knowledge of the same clients."""
        self.standings, self._late = other.standings, other._late

    def save(self) -> dict[int, str]:
        """Return the versions of the memories that the server has accepted."""
        return dict(self._accepted)

    def restore(self, versions: Mapping[int, str]) -> None:
        """Set other versions to continue with. A client that has lost its version starts anew."""
        self._accepted = dict(versions)
        self._kept = dict(versions)

    def settle(self) -> None:
        """Let clients delete the versions of the checkpoint before this one."""
        self._kept = dict(self._accepted)

    def _once_one_is_free(self, members: Sequence[Member]) -> Mapping[str, int]:
        """Wait until a member is online and idle; return the nodes that are online.

        Raises:
            KeyboardInterrupt: The run is to stop after its round, which no connected client can
                end.
        """
        until = time.monotonic() + self.patience
        while True:
            online = self.channel.link.online()
            for member in members:
                there = self.standings.get(member.id, "away") != "away"
                if there != (member.name in online):
                    self._stands(member, "away" if there else "waiting")
            free = (m.name in online and not self._is_busy(m.id) for m in members)
            if not members or any(free) or time.monotonic() >= until:
                return online
            if self.patience == math.inf and self.stopped():
                raise KeyboardInterrupt
            time.sleep(self.channel.timeouts.poll)

    def _ask(self, task: Task, member: Member, node: int | None, payload: bytes) -> _Asked:
        if self._is_busy(member.id):
            return AbsentClientError("it is still at work on what it was asked before")
        request = Request(
            kind="work",
            run=self.run,
            nonce=new_token(),
            spec=self.spec,
            client=member.id,
            exchange=task.exchange,
            round=task.round,
            index=task.index,
            last=task.last,
            samples=task.samples,
            session=self.session,
            remembered=self._accepted.get(member.id, ""),
            kept=self._kept.get(member.id, ""),
        )
        ticket = None
        if node is not None:
            packet = Packet(request.written(), payload)
            ticket = self.channel.link.push(node, packet, self.channel.timeouts.life)
        if ticket is None:
            self._stands(member, "away")
            return AbsentClientError("it is not online")
        self._stands(member, "training")
        return request, ticket

    def _is_busy(self, client: int) -> bool:
        """Return whether a late response is still awaited; one that has arrived is dropped."""
        if client not in self._late:
            return False
        ticket, until = self._late[client]
        if self.channel.link.pull(ticket) is None and time.monotonic() < until:
            return True
        del self._late[client]
        return False

    def _reply(
        self, exchange: Exchange[Any, Any], member: Member, asked: _Asked, until: float
    ) -> Reply:
        if isinstance(asked, AbsentClientError):
            return Reply(member.id, asked)
        request, ticket = asked
        while (found := self.channel.link.pull(ticket)) is None:
            if time.monotonic() >= until:
                self._late[member.id] = ticket, time.monotonic() + self.channel.timeouts.grace
                self._stands(member, "late")
                reason = f"no answer within {self.channel.timeouts.answer:g} s"
                return Reply(member.id, AbsentClientError(reason))
            time.sleep(self.channel.timeouts.poll)
        if isinstance(found, Undelivered):
            self._stands(member, "away")
            return Reply(member.id, AbsentClientError(found.reason))
        self._stands(member, "waiting")
        try:
            return self._read(exchange, member, request, found)
        except MessageError as error:
            return Reply(member.id, RefusedUpdateError(str(error)))

    def _read(
        self, exchange: Exchange[Any, Any], member: Member, request: Request, found: Packet
    ) -> Reply:
        response = Response.to(request, found.header)
        if response.status == "lost":
            self._accepted.pop(member.id, None)
        if response.status != "done":
            raise MessageError(response.why)
        update = deserialize(exchange.update, found.payload, self.device)
        if not response.remembers:
            return Reply(member.id, update)
        accept = partial(operator.setitem, self._accepted, member.id, request.version)
        return Reply(member.id, update, accept)

    def _stands(self, member: Member, now: Standing) -> None:
        before = self.standings.get(member.id, "away")
        self.standings[member.id] = now
        if now != before:
            self.channel.observer.on_standing(member, before, now)


def _payloads(message: object, members: Sequence[Member]) -> Iterator[bytes]:
    """Yield each client's payload, made when it is sent."""
    if isinstance(message, Addressed):
        yield from (serialize(message.to(member.id)) for member in members)
    else:
        yield from repeat(serialize(message), len(members))
