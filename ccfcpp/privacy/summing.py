"""A transport on which clients' updates become one sum before the server's work sees them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from ccfcpp.core.profiling import section
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, RefusedUpdateError, Task
from ccfcpp.engine.payload import pack, size
from ccfcpp.engine.transport import Reply, Transport
from ccfcpp.privacy.addition import Addition, Parts, addition_of
from ccfcpp.privacy.summation import Summation, flattened, unflattened

WEIGHT_OF_ALL = 1.0
"""What each client counts in a mean where sums have noise."""

MakeSum = Callable[[Task, Sequence[Member]], Summation]
"""Makes the sum of a task over some clients."""


class Mechanism(Protocol):
    """What makes a sum differentially private.

    Attributes:
        contributors: What a mean is divided by, whoever takes part.
    """

    contributors: float

    def contributed(self, task: Task, parts: Parts) -> Parts:
        """What of a client's parts is added up."""
        ...

    def published(self, task: Task, totals: Parts) -> Parts:
        """What the server hears of the totals."""
        ...


class Summing:
    """A transport that gives the loop one update for all clients.

    It lies between the clients and the loop, so that every system whose exchanges add up has it
    without a line of its own. An exchange that does not travel goes through as it is.

    Args:
        inner: Takes tasks to the clients, and brings each one's update by itself.
        exchanges: All exchanges of the system, by name; those that travel add up.
        make_sum: How vectors are added up.
        mechanism: What is done to contributions and to their sum; None: nothing.
    """

    def __init__(
        self,
        inner: Transport,
        exchanges: Mapping[str, Exchange[Any, Any]],
        make_sum: MakeSum,
        mechanism: Mechanism | None = None,
    ) -> None:
        self.inner = inner
        self.exchanges = exchanges
        self.make_sum = make_sum
        self.mechanism = mechanism
        self.weight = None if mechanism is None else WEIGHT_OF_ALL
        self.divisor = None if mechanism is None else mechanism.contributors
        self.save = inner.save
        self.restore = inner.restore
        self.settle = inner.settle

    def deliver(self, task: Task, message: object, members: Sequence[Member]) -> Iterator[Reply]:
        """One reply for all whose sum it is, and one for each that has no part in it."""
        exchange = self.exchanges[task.exchange]
        addition = addition_of(exchange)
        if not exchange.travels or addition is None:
            yield from self.inner.deliver(task, message, members)
            return
        total = self.make_sum(task, members)
        included: list[Reply] = []
        told: set[int] = set()
        try:
            with section("sums: keys"):
                total.begin()
            like: dict[str, Tensor] = {}
            for reply in self.replies(total, task, message, members):
                refusal = self._added(total, addition, task, message, reply, like)
                if refusal is None:
                    included.append(reply)
                else:
                    told.update(reply.clients)
                    yield Reply(reply.client, refusal, others=reply.others)
            with section("sums: total"):
                parts = unflattened(total.total(), like)
            if self.mechanism is not None:
                parts = self.mechanism.published(task, parts)
            update = self.whole(addition, exchange, message, parts)
        except RefusedUpdateError as refusal:
            update = refusal
            left = [member.id for member in members if member.id not in told]
            lost = {n: reason for n in left if (reason := total.reason(n)) is not None}
            yield from (Reply(number, reason) for number, reason in lost.items())
            included = [Reply(number, refusal) for number in left if number not in lost]
        if not included:
            # Each of them has been refused by itself.
            return
        first, *others = (client for reply in included for client in reply.clients)
        down = size(pack(message)) * len(members) + total.bytes_down
        yield Reply(
            first,
            update,
            lambda: _accept(included),
            tuple(others),
            noised=self.mechanism is not None,
            bytes_up=total.bytes_up,
            bytes_down=down,
        )

    def _added(
        self,
        total: Summation,
        addition: Addition,
        task: Task,
        message: object,
        reply: Reply,
        like: dict[str, Tensor],
    ) -> RefusedUpdateError | None:
        """Count an update in; why it has no part in the sum, where it has none."""
        if isinstance(reply.update, RefusedUpdateError):
            return reply.update
        try:
            with section("sums: vectors"):
                self.counted(total, addition, task, message, reply, like)
        except RefusedUpdateError as refusal:
            return refusal
        return total.reason(reply.client)

    def whole(
        self, addition: Addition, exchange: Exchange[Any, Any], message: object, parts: Parts
    ) -> object:
        """The update that stands for all, from the sums of their parts."""
        update: object = addition.whole(exchange.update, message, parts, self.divisor)
        return update

    def replies(
        self, total: Summation, task: Task, message: object, members: Sequence[Member]
    ) -> Iterator[Reply]:
        """What comes of a task at each of some clients."""
        return self.inner.deliver(task, message, members)

    def counted(
        self,
        total: Summation,
        addition: Addition,
        task: Task,
        message: object,
        reply: Reply,
        like: dict[str, Tensor],
    ) -> None:
        """Count an update in.

        Args:
            total: The sum.
            addition: How updates add up.
            task: What was asked for.
            message: What went down.
            reply: What has come.
            like: Takes tensors of the shapes of what is added up.

        Raises:
            RefusedUpdateError: It cannot be.
        """
        parts = addition.parts(message, reply.update, self.weight)
        if self.mechanism is not None:
            parts = self.mechanism.contributed(task, parts)
        like.update(parts)
        vector = flattened(parts)
        total.add(reply.client, vector)
        # A sum for several has the size of the one that each of them would have sent.
        total.bytes_up += vector.nbytes * len(reply.others)


def _accept(replies: Sequence[Reply]) -> None:
    for reply in replies:
        reply.accept()
