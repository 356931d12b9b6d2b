"""Requests to clients, stages between the transport and the loop, and checks of updates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

from torch import Tensor

from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AnyExchange, AnyServerWork, RefusedUpdateError, Task
from ccfcpp.engine.payload import check_format, count_bytes, find_non_finite, pack
from ccfcpp.engine.transport import Reply, Transport
from ccfcpp.engine.update_format import UpdateFormat


@dataclass(frozen=True)
class ExchangeRequest:
    """The server's request to some clients in an exchange."""

    work: AnyServerWork
    task: Task
    message: object
    members: Sequence[Member]

    @property
    def exchange(self) -> AnyExchange:
        """The exchange of the request."""
        return self.work.exchange

    @cached_property
    def update_format(self) -> UpdateFormat:
        """The tensor names, shapes and dtypes that an update must have."""
        return self.work.update_format(self.message)

    @cached_property
    def member(self) -> Mapping[int, Member]:
        """The clients by number."""
        return {member.id: member for member in self.members}


Deliver = Callable[[ExchangeRequest], Iterator[Reply]]
"""Has clients work on a request, as ``Transport.deliver``."""


class Stage(Protocol):
    """Interface of a stage between the clients and the loop, such as noise or a defence."""

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        """Send a request to clients, and yield their replies.

        Args:
            request: The request.
            inner: The transport, with the stages that are nearer to the clients.
        """


def wrap_transport(transport: Transport, stages: Sequence[Stage]) -> Deliver:
    """Put stages around a transport; the first one is the nearest to the clients."""

    def delivered(request: ExchangeRequest) -> Iterator[Reply]:
        return transport.deliver(request.task, request.message, request.members)

    found: Deliver = delivered
    for stage in stages:
        found = partial(stage.deliver, inner=found)
    return found


def combine_replies(update: object, replies: Sequence[Reply], reply: Reply) -> Reply:
    """Make one reply in place of several.

    Args:
        update: The update in place of all of theirs.
        replies: At least one.
        reply: Further properties of the new reply; its clients are ignored.
    """

    def accept() -> None:
        for each in replies:
            each.accept()

    first, *others = (client for each in replies for client in each.clients)
    return replace(reply, client=first, update=update, accept=accept, others=tuple(others))


def check_reply(request: ExchangeRequest, reply: Reply) -> object:
    """Return the update of a reply, if it can be used.

    Raises:
        RefusedUpdateError: There is no update, or its type, form or numbers are not those that the
            exchange declares.
    """
    work, update = request.work, reply.update
    if isinstance(update, RefusedUpdateError):
        raise update
    if reply.is_checked:
        return update
    if type(update) is not work.exchange.update:
        expected = work.exchange.update.__name__
        raise RefusedUpdateError(f"it is a {type(update).__name__}, expected a {expected}")
    tensors = pack_update(update)
    if not reply.noised:
        check_format(request.update_format, tensors)
    if name := find_non_finite(tensors):
        raise RefusedUpdateError(f"{name} holds NaN or Inf")
    if reply.noised:
        return work.project_noisy(request.message, update)
    work.check(request.message, update, [request.member[client] for client in reply.clients])
    return update


def count_sent_bytes(reply: Reply) -> int:
    """Count the bytes that the clients of a reply have sent; 0 if it cannot be packed."""
    if reply.bytes_up is not None:
        return reply.bytes_up
    if isinstance(reply.update, RefusedUpdateError):
        return 0
    try:
        # A sum for several has the size of the one that each of them would have sent.
        return count_bytes(pack_update(reply.update)) * len(reply.clients)
    except RefusedUpdateError:
        return 0


def pack_update(update: object) -> dict[str, Tensor]:
    """Pack an update; raise ``RefusedUpdateError`` if it holds anything but tensors."""
    try:
        return pack(update)
    except (TypeError, ValueError, RuntimeError) as error:  # also an integer beyond 64 bits
        raise RefusedUpdateError(str(error)) from error
