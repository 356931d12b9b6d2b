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
from ccfcpp.engine.exchange import AbsentClientError, Addressed, Exchange, RefusedUpdateError, Task
from ccfcpp.engine.transport import Reply

_Sent = tuple[Request, str] | AbsentClientError
"""A request with the ticket for its response, or the error why nothing was sent."""


@dataclass(eq=False)
class Deployed:
    """Transport to clients on other machines, which work in parallel.

    Responses are read one by one, in the order of the members. So sums have the same rounding as in
    one process, and only one update is in memory at a time.

    Attributes:
        run: Token (random identifier) of the run; a resumed run keeps it.
        exchanges: The run's exchanges, by name.
        device: Device of received tensors.
        session: How often the run was resumed.
        everyone: All clients of the run. While one of them is free, no other is waited for.
        stopped: Returns whether the run was asked to stop; at first ``bool()``, which is False.
        patience: Seconds to wait while no client is available; infinite before the final exchanges.
        standings: Status of each client, by its number.
    """

    channel: Channel
    spec: RunSpec
    run: str
    exchanges: Mapping[str, Exchange[Any, Any]]
    device: torch.device
    session: int = 0
    everyone: Sequence[Member] = ()
    stopped: Callable[[], bool] = field(default=bool, init=False)
    patience: float = field(default=math.inf, init=False)
    standings: dict[int, Standing] = field(default_factory=dict, init=False)
    _accepted: dict[int, str] = field(default_factory=dict, init=False)
    _kept: dict[int, str] = field(default_factory=dict, init=False)
    _late: dict[int, tuple[str, float]] = field(default_factory=dict, init=False)

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """Send a task to ``members`` once a client is free; yield their replies in order."""
        exchange, online = self.exchanges[task.exchange], self._wait_for_free_client(members)
        payloads = _payloads(message, members)
        requests = [
            self._ask(task, member, online.get(member.name), payload)
            for member, payload in zip(members, payloads, strict=True)
        ]
        until = time.monotonic() + self.channel.timeouts.answer
        for member, sent in zip(members, requests, strict=True):
            yield self._await_reply(exchange, member, sent, until)

    def take_over(self, other: "Deployed") -> None:
        """Take over the status and late responses of clients from an earlier transport."""
        self.standings, self._late = other.standings, other._late

    def save(self) -> dict[int, str]:
        """Return the accepted version of each client's memory (local state), by client number."""
        return dict(self._accepted)

    def restore(self, versions: Mapping[int, str]) -> None:
        """Set the versions of clients' local states to continue from; a lost one starts anew."""
        self._accepted = dict(versions)
        self._kept = dict(versions)

    def settle(self) -> None:
        """Let clients delete versions of their local states older than those accepted now."""
        self._kept = dict(self._accepted)

    def _wait_for_free_client(self, members: Sequence[Member]) -> Mapping[str, int]:
        """Wait until a client is online and idle; return the online nodes' IDs by client name.

        Within the rounds it may be another one than ``members``, of whom some may never come back.

        Raises:
            KeyboardInterrupt: The run is to stop after the round, which no client can finish.
        """
        until = time.monotonic() + self.patience
        others = self.everyone if self.patience == math.inf else ()
        while True:
            online = self.channel.link.online()
            for member in members:
                there = self.standings.get(member.id, "away") != "away"
                if there != (member.name in online):
                    self._set_standing(member, "away" if there else "waiting")
            free = (m.name in online and not self._is_busy(m.id) for m in (*members, *others))
            if not members or any(free) or time.monotonic() >= until:
                return online
            if self.patience == math.inf and self.stopped():
                raise KeyboardInterrupt
            time.sleep(self.channel.timeouts.poll)

    def _ask(self, task: Task, member: Member, node: int | None, payload: bytes) -> _Sent:
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
            packet = Packet(request.to_json(), payload)
            ticket = self.channel.link.push(node, packet, self.channel.timeouts.life)
        if ticket is None:
            self._set_standing(member, "away")
            return AbsentClientError("it is not online")
        self._set_standing(member, "training")
        return request, ticket

    def _is_busy(self, client: int) -> bool:
        """Return whether a client's late response is awaited; drop one that has arrived now."""
        if client not in self._late:
            return False
        ticket, until = self._late[client]
        if self.channel.link.pull(ticket) is None and time.monotonic() < until:
            return True
        del self._late[client]
        return False

    def _await_reply(
        self, exchange: Exchange[Any, Any], member: Member, sent: _Sent, until: float
    ) -> Reply:
        if isinstance(sent, AbsentClientError):
            return Reply(member.id, sent)
        request, ticket = sent
        while (answer := self.channel.link.pull(ticket)) is None:
            if time.monotonic() >= until:
                self._late[member.id] = ticket, time.monotonic() + self.channel.timeouts.grace
                self._set_standing(member, "late")
                reason = f"no answer within {self.channel.timeouts.answer:g} s"
                return Reply(member.id, AbsentClientError(reason))
            time.sleep(self.channel.timeouts.poll)
        if isinstance(answer, Undelivered):
            self._set_standing(member, "away")
            return Reply(member.id, AbsentClientError(answer.reason))
        self._set_standing(member, "waiting")
        try:
            return self._read_response(exchange, member, request, answer)
        except MessageError as error:
            return Reply(member.id, RefusedUpdateError(str(error)))

    def _read_response(
        self, exchange: Exchange[Any, Any], member: Member, request: Request, packet: Packet
    ) -> Reply:
        response = Response.read_reply(request, packet.header)
        if response.status == "lost":
            self._accepted.pop(member.id, None)
        if response.status != "done":
            raise MessageError(response.why)
        update = deserialize(exchange.update, packet.payload, self.device)
        if not response.remembers:
            return Reply(member.id, update)
        accept = partial(operator.setitem, self._accepted, member.id, request.version)
        return Reply(member.id, update, accept)

    def _set_standing(self, member: Member, now: Standing) -> None:
        before = self.standings.get(member.id, "away")
        self.standings[member.id] = now
        if now != before:
            self.channel.observer.on_standing(member, before, now)


def _payloads(message: object, members: Sequence[Member]) -> Iterator[bytes]:
    """Yield each client's message (its own if addressed) as bytes, one by one to save memory."""
    if isinstance(message, Addressed):
        yield from (serialize(message.to(member.id)) for member in members)
    else:
        yield from repeat(serialize(message), len(members))
