"""Secure sums with clients on other machines: the stages of ``ccfcpp.privacy.secure_sums`` travel.

Before an exchange that adds up, clients send keys, and then shares. With the exchange itself each
gets what the others have sealed for it, and answers with its numbers under masks. After it those
whose numbers have come send what takes the masks off the sum.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ccfcpp.deployment.bounded_sums import CheckedSumming
from ccfcpp.deployment.masked_messages import (
    KEYS,
    SHARES,
    UNMASKING,
    Arrived,
    Begun,
    Listed,
    Mail,
    Masked,
    terms_of,
    under_masks,
)
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AbsentClientError, Exchange, RefusedUpdateError, Task
from ccfcpp.engine.payload import pack, size
from ccfcpp.engine.transport import Reply, Transport
from ccfcpp.privacy.addition import Addition
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.secure_sums import Collector
from ccfcpp.privacy.summation import Summation
from ccfcpp.privacy.summing import Mechanism


class SumOverNetwork(Summation):
    """The server's part in one sum.

    Args:
        inner: Takes tasks to the clients.
        task: Which sum it is.
        members: The clients that are asked.
        config: What the run does for privacy.

    Attributes:
        sharers: Those that have shared, and have not been lost since.
        mail: What they have sealed for each other.
    """

    def __init__(
        self, inner: Transport, task: Task, members: Sequence[Member], config: PrivacyConfig
    ) -> None:
        super().__init__()
        self.inner = inner
        self.task = task
        self.members = members
        self.terms = terms_of(config, task, len(members))
        self.collector = Collector(self.terms)
        self.sharers: list[Member] = []
        self.mail = Mail.of({})
        self._form: dict[str, tuple[object, ...]] | None = None
        self._reasons: dict[int, RefusedUpdateError] = {}

    def begin(self) -> None:
        """Keys, and boxes with shares."""
        keys = self._asked(KEYS, Begun(len(self.members)), self.members, "keys")
        roster = self.collector.roster(keys)
        there = [member for member in self.members if member.id in roster]
        boxes = self._asked(SHARES, Listed.of(roster), there, "shares")
        for number in [n for n, own in boxes.items() if own.keys() != roster.keys() - {n}]:
            del boxes[number]
            self._lose(number, "shares", RefusedUpdateError("they are not for all others"))
        routed = self.collector.routed(boxes)
        self.sharers = [member for member in there if member.id in routed]
        self.mail = Mail.of(routed)
        self.bytes_down += size(pack(self.mail)) * len(self.sharers)

    def add(self, client: int, vector: Tensor) -> None:
        """Nothing: vectors come under masks."""
        raise NotImplementedError

    def take(self, client: int, masked: Masked) -> None:
        """Count a client's masked numbers in.

        Raises:
            RefusedUpdateError: They are of another form than those of others.
        """
        words = masked.read(self.terms.form)
        if self._form not in (None, masked.form):
            raise RefusedUpdateError("its masked numbers have other shapes than those of others")
        self.collector.take(client, words)
        self._form = masked.form
        self.bytes_up += words.nbytes

    def total(self) -> Tensor:
        """Take the masks off."""
        arrived = self.collector.arrived()
        there = [member for member in self.sharers if member.id in arrived]
        revealed = self._asked(UNMASKING, Arrived(torch.tensor(arrived)), there, "unmasking")
        return self.terms.form.decoded(self.collector.total(revealed))

    def reason(self, client: int) -> RefusedUpdateError | None:
        """What the client itself, or its transport, has said."""
        return self._reasons.get(client)

    def _asked(
        self, exchange: Exchange[Any, Any], message: Any, members: Sequence[Member], stage: str
    ) -> dict[int, Any]:
        """The answers at a stage, as they are read, by the client's number; others are lost."""
        task = dataclasses.replace(self.task, exchange=exchange.name, last=False)
        found: dict[int, Any] = {}
        for reply in self.inner.deliver(task, message, members):
            if not isinstance(reply.update, AbsentClientError):
                self.bytes_down += size(pack(message))
            try:
                found[reply.client] = self._read(reply.update)
            except RefusedUpdateError as refusal:
                self._lose(reply.client, stage, refusal)
        return found

    def _read(self, update: Any) -> Any:
        if isinstance(update, RefusedUpdateError):
            raise update
        self.bytes_up += size(pack(update))
        return update.read()

    def _lose(self, client: int, stage: str, why: RefusedUpdateError) -> None:
        self.lost[client] = stage
        is_absent = isinstance(why, AbsentClientError)
        kind = AbsentClientError if is_absent else RefusedUpdateError
        self._reasons[client] = kind(f"{stage} of the secure sum: {why}")


class SummingOverNetwork(CheckedSumming):
    """A transport that gives the loop sums of clients on other machines, and no summand.

    Args:
        inner: Takes tasks to the clients; it knows ``exchanges_under_masks``.
        exchanges: All exchanges of the system, by name; those that travel add up.
        config: What the run does for privacy.
        mechanism: What is done to sums; None: nothing. Clients do themselves what is done to
            contributions.
    """

    def __init__(
        self,
        inner: Transport,
        exchanges: Mapping[str, Exchange[Any, Any]],
        config: PrivacyConfig,
        mechanism: Mechanism | None = None,
    ) -> None:
        def make_sum(task: Task, members: Sequence[Member]) -> SumOverNetwork:
            return SumOverNetwork(inner, task, members, config)

        super().__init__(inner, exchanges, make_sum, mechanism)
        self._masked = {name: under_masks(each) for name, each in exchanges.items()}

    def replies(
        self, total: Summation, task: Task, message: object, members: Sequence[Member]
    ) -> Iterator[Reply]:
        """Masked numbers of those that have shared, and why there are none of others."""
        assert isinstance(total, SumOverNetwork)
        for member in members:
            if (reason := total.reason(member.id)) is not None:
                yield Reply(member.id, reason)
        masked = self._masked[task.exchange]
        with_mail = masked.message(message=message, mail=total.mail)
        own = dataclasses.replace(task, exchange=masked.name)
        yield from self.inner.deliver(own, with_mail, total.sharers)

    def counted(
        self,
        total: Summation,
        addition: Addition,
        task: Task,
        message: object,
        reply: Reply,
        like: dict[str, Tensor],
    ) -> None:
        """Count masked numbers in."""
        assert isinstance(total, SumOverNetwork)
        assert isinstance(reply.update, Masked)
        total.take(reply.client, reply.update)
        addition.like = reply.update.like
        like.update(reply.update.words)
