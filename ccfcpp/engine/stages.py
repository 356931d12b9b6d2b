"""Requests to clients, stages between the transport and the round loop, and checks of updates."""

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
    """The server's request to some clients in an exchange.

    Attributes:
        work: The server's half of the exchange.
        task: The task that clients get.
        message: The message that clients get.
        members: The clients that are asked.
    """

    work: AnyServerWork
    task: Task
    message: object
    members: Sequence[Member]

    @property
    def exchange(self) -> AnyExchange:
        """The exchange that is carried out: its name, and the types of message and update."""
        return self.work.exchange

    @cached_property
    def update_format(self) -> UpdateFormat:
        """The tensor names, shapes and dtypes that an update must have."""
        return self.work.update_format(self.message)

    @cached_property
    def member(self) -> Mapping[int, Member]:
        """The clients that are asked, by number."""
        return {member.id: member for member in self.members}


Deliver = Callable[[ExchangeRequest], Iterator[Reply]]
"""Sends a request to clients and yields their replies, as ``Transport.deliver`` does."""


class Stage(Protocol):
    """Interface of a stage between the clients and the round loop, such as noise or a defence."""

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        """Send a request to clients by ``inner``, and yield their replies, possibly changed.

        Args:
            request: The request.
            inner: Delivers by the transport and the stages that are nearer to the clients.
        """


def wrap_transport(transport: Transport, stages: Sequence[Stage]) -> Deliver:
    """Return a function that sends requests through stages; the first stage is next to clients."""

    def by_transport(request: ExchangeRequest) -> Iterator[Reply]:
        return transport.deliver(request.task, request.message, request.members)

    deliver: Deliver = by_transport
    for stage in stages:
        deliver = partial(stage.deliver, inner=deliver)
    return deliver


def combine_replies(update: object, replies: Sequence[Reply], reply: Reply) -> Reply:
    """Combine replies into one; if the server accepts it, all of them are accepted.

    Args:
        update: The update of the combined reply.
        replies: The replies, at least one.
        reply: Has the other properties of the combined reply; its clients are ignored.
    """

    def accept() -> None:
        for each in replies:
            each.accept()

    first, *others = (client for each in replies for client in each.clients)
    return replace(reply, client=first, update=update, accept=accept, others=tuple(others))


def check_reply(request: ExchangeRequest, reply: Reply) -> object:
    """Check the update of a reply, and return it.

    Returns:
        The update; one with added noise is first made valid by ``ServerWork.project_noisy``.

    Raises:
        RefusedUpdateError: There is no update, or its type, format or values are not allowed.
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
        # The sum of several clients is as large as the update that each of them would have sent.
        return count_bytes(pack_update(reply.update)) * len(reply.clients)
    except RefusedUpdateError:
        return 0


def pack_update(update: object) -> dict[str, Tensor]:
    """Flatten an update to tensors by name; raise ``RefusedUpdateError`` if that is impossible."""
    try:
        return pack(update)
    except (TypeError, ValueError, RuntimeError) as error:  # also an integer beyond 64 bits
        raise RefusedUpdateError(str(error)) from error
