"""Differential privacy with clients on other machines, where no masks hide a client's part.

A client bounds its part by itself and sends nothing else of its update: no loss, and no number of
batches. The server bounds it once more, which changes nothing of what an honest client sends.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import ClientWork, Exchange, RefusedUpdateError, Task
from ccfcpp.engine.payload import PayloadError, not_finite, pack
from ccfcpp.engine.transport import Reply, Transport
from ccfcpp.privacy.addition import Addition, Parts, addition_of
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.dp_levels import Level, client_bounds
from ccfcpp.privacy.summation import OpenSum, Summation, flattened
from ccfcpp.privacy.summing import WEIGHT_OF_ALL, Summing


@dataclass(frozen=True)
class Bounded:
    """What adds up of a client's update, within its bounds.

    Attributes:
        parts: float64 by name.
        like: Of each part a tensor without numbers that has its dtype in an update of sums.
    """

    parts: dict[str, Tensor]
    like: dict[str, Tensor]

    def read(self) -> Parts:
        """The parts.

        Raises:
            RefusedUpdateError: They are no finite numbers.
        """
        if not self.parts or any(part.dtype != torch.float64 for part in self.parts.values()):
            raise RefusedUpdateError("its parts are no float64")
        if name := not_finite(self.parts):
            raise RefusedUpdateError(f"{name} holds NaN or Inf")
        return self.parts


def within_bounds(exchange: Exchange[Any, Any]) -> Exchange[Any, Bounded]:
    """An exchange that adds up, of whose updates the bounded parts are sent."""
    name = f"{exchange.name} within bounds"
    return Exchange(name, exchange.message, Bounded, uses_memory=exchange.uses_memory)


def exchanges_within_bounds(
    exchanges: Mapping[str, Exchange[Any, Any]],
) -> dict[str, Exchange[Any, Any]]:
    """All that clients are asked for under differential privacy without masks, by name."""
    own = [within_bounds(each) for each in exchanges.values() if each.travels]
    return {each.name: each for each in own}


def contributed(config: PrivacyConfig, addition: Addition, message: Any, update: Any) -> Parts:
    """What of its update a client adds to a sum.

    On the client level its parts are clipped here; on the image level those of its images were.

    Args:
        config: What the run does for privacy.
        addition: How updates add up.
        message: What went down.
        update: What the client made of it.
    """
    weight = None if config.level == "none" else WEIGHT_OF_ALL
    parts = addition.parts(message, update, weight)
    return client_bounds(config).clipped(parts) if config.level == "client" else parts


class WithinBounds(ClientWork[Any, Any]):
    """A client's work, of which bounded parts are sent.

    Args:
        config: What the run does for privacy.
        work: What the system asks for.
    """

    def __init__(self, config: PrivacyConfig, work: ClientWork[Any, Any]) -> None:
        self.config = config
        self.work = work
        self.exchange = within_bounds(work.exchange)

    def local_updates(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Bounded | RefusedUpdateError]:
        """Each client's by itself."""
        own = dataclasses.replace(task, exchange=self.work.exchange.name)
        updates = self.work.local_updates(own, message, clients, randomness)
        return [self._bounded(message, update) for update in updates]

    def _bounded(self, message: Any, update: Any) -> Bounded | RefusedUpdateError:
        if isinstance(update, RefusedUpdateError):
            return update
        addition = addition_of(self.work.exchange)
        if addition is None:
            return RefusedUpdateError(f"what {self.work.exchange.name} sends does not add up")
        parts = contributed(self.config, addition, message, update)
        return Bounded(parts, dict(addition.like))


def works_within_bounds(
    works: Mapping[str, ClientWork[Any, Any]], config: PrivacyConfig
) -> dict[str, ClientWork[Any, Any]]:
    """What can be asked of a client under differential privacy without masks, and nothing else.

    What would not travel in one process, and serves a report, is not sent here: nothing bounds it.

    Args:
        works: What the system asks for, by the exchange's name.
        config: What the run does for privacy.
    """
    own = [WithinBounds(config, work) for work in works.values() if work.exchange.travels]
    return {work.exchange.name: work for work in own}


class CheckedSumming(Summing):
    """A transport that gives the loop sums of what clients on other machines have sent."""

    def whole(
        self, addition: Addition, exchange: Exchange[Any, Any], message: object, parts: Parts
    ) -> object:
        """The sum as an update. Its names and shapes are what clients have said."""
        try:
            return super().whole(addition, exchange, message, parts)
        except (KeyError, PayloadError, RuntimeError) as error:
            raise RefusedUpdateError("the sum is of another form") from error


class SummingWithinBounds(CheckedSumming):
    """The same, of bounded parts that the server sees, and bounds once more.

    Args:
        inner: Takes tasks to the clients; it knows ``exchanges_within_bounds``.
        exchanges: All exchanges of the system, by name; those that travel add up.
        mechanism: What is done to contributions and to sums.
    """

    def __init__(
        self,
        inner: Transport,
        exchanges: Mapping[str, Exchange[Any, Any]],
        mechanism: Level,
    ) -> None:
        super().__init__(inner, exchanges, lambda task, members: OpenSum(), mechanism)
        self.level = mechanism

    def replies(
        self, total: Summation, task: Task, message: object, members: Sequence[Member]
    ) -> Iterator[Reply]:
        """Bounded parts, or why there are none."""
        name = within_bounds(self.exchanges[task.exchange]).name
        yield from self.inner.deliver(dataclasses.replace(task, exchange=name), message, members)

    def counted(
        self,
        total: Summation,
        addition: Addition,
        task: Task,
        message: object,
        reply: Reply,
        like: dict[str, Tensor],
    ) -> None:
        """Count bounded parts in."""
        assert isinstance(reply.update, Bounded)
        parts, dtypes = reply.update.read(), reply.update.like
        wanted = addition.shapes(message)
        # What the server knows of a form counts more than what the first client has sent.
        if wanted is None and (update := self.level.expected(task, message)) is not None:
            addition.parts(message, update)
            wanted, dtypes = _form(pack(update)), addition.like
        if wanted not in (None, _form(parts)):
            raise RefusedUpdateError(f"its parts are not those of {task.exchange}")
        if like and (_form(parts), _dtypes(dtypes)) != (_form(like), _dtypes(addition.like)):
            raise RefusedUpdateError("its parts have other shapes than those of others")
        # An honest client has done so. Another one, or an old one, may have sent anything.
        parts = self.level.contributed(task, parts)
        addition.like = dtypes
        like.update(parts)
        total.add(reply.client, flattened(parts))


def _form(parts: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: part.shape for name, part in parts.items()}


def _dtypes(like: Mapping[str, Tensor]) -> dict[str, torch.dtype]:
    return {name: each.dtype for name, each in like.items()}
