"""The stage that combines clients' updates into one sum for the server's work."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ccfcpp.core.profiling import section
from ccfcpp.engine.exchange import (
    AbsentClientError,
    AnyExchange,
    Exchange,
    Message,
    RefusedUpdateError,
    Update,
    part_for,
)
from ccfcpp.engine.payload import count_bytes, find_non_finite, pack
from ccfcpp.engine.stages import Deliver, ExchangeRequest, combine_replies, count_sent_bytes
from ccfcpp.engine.transport import Reply
from ccfcpp.engine.update_format import Addends
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import Level
from ccfcpp.privacy.noise.mechanism import clipped_by_client
from ccfcpp.privacy.sums.agreement import terms_of
from ccfcpp.privacy.sums.client import addition_of, flattened, unflattened
from ccfcpp.privacy.sums.distributed_noise import OwnNoise
from ccfcpp.privacy.sums.masks import TAG_BYTES
from ccfcpp.privacy.sums.messages import (
    AGREEMENT,
    KEYS,
    SHARES,
    UNMASKING,
    Begun,
    BoundedParts,
    ClientRows,
    Keys,
    Letters,
    Mail,
    MaskedParts,
    WithMail,
    digest_of,
    letters_of_neighbours,
    numbers_of,
    under_masks,
    within_bounds,
)
from ccfcpp.privacy.sums.protocol import BOX_BYTES, Collector, Offer

Answer = TypeVar("Answer")


class Summing:
    """Stage that replaces the clients' updates by one update, made from their sum.

    An exchange that is not sent passes unchanged.
    """

    def __init__(self, config: PrivacyConfig, mechanism: Level | None = None) -> None:
        self.config = config
        self.mechanism = mechanism

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        """Yield one reply for all clients in the sum, and one for each other client."""
        if not request.exchange.travels:
            yield from inner(request)
            return
        addition = addition_of(self.config, request.exchange, request.message)
        like = addition.zeros(request.update_format)
        kind = SecureSum if self.config.secure_sums else OpenSum
        total = kind(request, inner, like, self)
        included: list[Reply] = []
        told: dict[int, RefusedUpdateError] = {}
        reached = 0
        try:
            with section("sums: keys"):
                total.begin()
            for reply in total.replies():
                refusal = self._added(total, reply)
                if refusal is None:
                    # Its update is in the sum, and need not be stored.
                    included.append(dataclasses.replace(reply, update=None))
                    reached += len(reply.clients)
                else:
                    told |= dict.fromkeys(reply.clients, refusal)
                    yield dataclasses.replace(
                        reply, update=refusal, bytes_up=count_sent_bytes(reply)
                    )
            with section("sums: total"):
                contributors = self.mechanism.contributors if self.mechanism else 1.0
                update = addition.whole(request.update_format, total.published(), contributors)
        except RefusedUpdateError as refusal:
            update = refusal = _explained(refusal, total.lost | told)
            left = [member.id for member in request.members if member.id not in told]
            lost = {n: reason for n in left if (reason := total.lost.get(n)) is not None}
            yield from (Reply(n, reason, bytes_down=0) for n, reason in lost.items())
            included = [Reply(number, refusal) for number in left if number not in lost]
        if not included:
            # Each of them has been refused by itself.
            return
        # Those that are refused by themselves count what they have received.
        down = count_bytes(pack(request.message)) * reached + total.bytes_down
        said = Reply(
            0,
            None,
            noised=self.mechanism is not None,
            bytes_up=total.bytes_up,
            bytes_down=down,
        )
        yield combine_replies(update, included, said)

    def _added(self, total: "Total", reply: Reply) -> RefusedUpdateError | None:
        """Add an update; return the reason if it has no part in the sum."""
        if isinstance(reply.update, RefusedUpdateError):
            return reply.update
        try:
            with section("sums: vectors"):
                total.add(reply)
        except RefusedUpdateError as refusal:
            return refusal
        return None


def _explained(
    refusal: RefusedUpdateError, reasons: Mapping[int, RefusedUpdateError]
) -> RefusedUpdateError:
    """Return why there is no sum, with the reason of the first refused client, if any."""
    for number, reason in sorted(reasons.items()):
        if not isinstance(reason, AbsentClientError):
            return RefusedUpdateError(f"{refusal}; client {number}: {reason}")
    return refusal


class Total(ABC):
    """Base class of sums over clients; steps raise ``RefusedUpdateError`` if there is none."""

    def __init__(
        self, request: ExchangeRequest, inner: Deliver, like: Addends, stage: Summing
    ) -> None:
        self.request = request
        self.inner = inner
        self.like = like
        self.stage = stage
        self.lost: dict[int, RefusedUpdateError] = {}
        """Why clients have no part in the sum, by their numbers."""
        # What they have sent and received for it, without the message of the exchange.
        self.bytes_up = self.bytes_down = 0

    def begin(self) -> None:  # noqa: B027 - most sums need nothing
        """Prepare the sum before clients work."""

    @abstractmethod
    def replies(self) -> Iterator[Reply]:
        """Yield the clients' replies to the request."""

    @abstractmethod
    def add(self, reply: Reply) -> None:
        """Add a client's reply, if it can be used."""

    @abstractmethod
    def total(self) -> Tensor:
        """Return the sum, a float64 vector."""

    def published(self) -> Addends:
        """Return the sums by name, with noise if the server adds any."""
        totals, mechanism = unflattened(self.total(), self.like), self.stage.mechanism
        return mechanism.published(self.request.exchange, totals) if mechanism else totals

    def ask(
        self, exchange: AnyExchange, message: object, clients: Iterable[int]
    ) -> ExchangeRequest:
        """Return a request to some clients in another exchange."""
        task = dataclasses.replace(self.request.task, exchange=exchange.name)
        members = [self.request.member[number] for number in clients]
        return dataclasses.replace(self.request, task=task, message=message, members=members)


class OpenSum(Total):
    """Sum without masks: the server sees every client's clipped parts."""

    _total: Tensor | None = None

    def replies(self) -> Iterator[Reply]:
        """Yield the replies with bounded parts."""
        exchange = within_bounds(self.request.exchange)
        return self.inner(self.ask(exchange, self.request.message, self.request.member))

    def add(self, reply: Reply) -> None:
        """Add a client's parts, in the order of the clients."""
        parts = _of_type(BoundedParts, reply.update).parts
        if _form(parts) != _form(self.like):
            raise RefusedUpdateError(f"its parts are not those of {self.request.exchange.name}")
        if name := find_non_finite(parts):
            raise RefusedUpdateError(f"{name} holds NaN or Inf")
        # An honest client has clipped its parts. Another one, or an old one, may send anything.
        parts = clipped_by_client(self.stage.config, self.request.exchange, parts)
        vector = flattened(parts)
        # A sum for several has the size of the one that each of them would have sent.
        self.bytes_up += vector.nbytes * len(reply.clients)
        self._total = vector if self._total is None else self._total.add_(vector)

    def total(self) -> Tensor:
        """Return the sum of the parts that have come."""
        if self._total is None:
            raise RefusedUpdateError("there is nothing to add up")
        return self._total


def _form(parts: Addends) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (part.dtype, part.shape) for name, part in parts.items()}


class SecureSum(Total):
    """A sum in which the server sees masked numbers and, at the end, only the total.

    Before the exchange clients send keys, and then shares. With the exchange each gets what others
    have sealed for it, and answers with its masked numbers. After it the clients whose numbers have
    come agree on who is in the sum, and then send what removes the masks.
    """

    def __init__(
        self, request: ExchangeRequest, inner: Deliver, like: Addends, stage: Summing
    ) -> None:
        super().__init__(request, inner, like, stage)
        self.terms = terms_of(stage.config, request.task, len(request.members))
        about = digest_of(request.exchange, request.message)
        self.collector = Collector(self.terms, [member.id for member in request.members], about)
        self._mail = Mail.of({}, {})

    def begin(self) -> None:
        """Collect keys, and sealed shares."""
        collector, asked = self.collector, [member.id for member in self.request.members]
        offers = self._asked(KEYS, Begun(numbers_of(asked)), asked, "keys", self._offer)
        known = letters_of_neighbours(collector.neighbours(offers))
        boxes = self._asked(SHARES, known, [*offers], "shares", self._boxes)
        self._mail = Mail.of(*collector.routed(boxes))
        self._sharers = [*boxes]
        self.bytes_down += sum(count_bytes(pack(self._mail.to(number))) for number in self._sharers)

    def replies(self) -> Iterator[Reply]:
        """Yield masked numbers of the clients that have shared, and reasons for the others."""
        for number, reason in self.lost.items():
            yield Reply(number, reason, bytes_down=0)
        masked = under_masks(self.request.exchange)
        message = WithMail(self.request.message, self._mail)
        yield from self.inner(self.ask(masked, message, self._sharers))

    def add(self, reply: Reply) -> None:
        """Add masked numbers to the total."""
        numbers = sum(part.numel() for part in self.like.values())
        update = _of_type(MaskedParts, reply.update)
        self.collector.take(reply.client, *update.read(self.terms.form, numbers))
        self.bytes_up += count_bytes(pack(update))

    def total(self) -> Tensor:
        """Have clients agree on who is in the sum, and remove the masks."""
        collector = self.collector
        arrived = collector.arrived()
        message = Letters.of(arrived, TAG_BYTES)
        tags = self._asked(
            AGREEMENT, message, [*arrived], "agreement", lambda _, update: update.read(TAG_BYTES)
        )
        included = Letters.of(collector.included(tags), TAG_BYTES)
        revealed = self._asked(
            UNMASKING, included, [*tags], "unmasking", lambda _, update: update.read()
        )
        return self.terms.form.decoded(collector.total(revealed))

    def published(self) -> Addends:
        """Return the sums by name, with the noise of the server or of the clients."""
        own = OwnNoise.of(self.stage.config, self.request.exchange, self.terms)
        return own.scaled(unflattened(self.total(), self.like)) if own else super().published()

    def _offer(self, number: int, update: Keys) -> Offer:
        offer = update.read()
        self.collector.check(number, offer)
        return offer

    def _boxes(self, number: int, update: ClientRows) -> dict[int, bytes]:
        boxes = update.read(BOX_BYTES)
        if boxes.keys() != self.collector.others(number):
            raise RefusedUpdateError("they are not for all holders")
        return boxes

    def _asked(
        self,
        exchange: Exchange[Message, Update],
        message: Message,
        clients: Iterable[int],
        stage: str,
        read: Callable[[int, Update], Answer],
    ) -> dict[int, Answer]:
        """Return the parsed answers at a stage, by the client's number; other clients drop out."""
        request = self.ask(exchange, message, clients)
        request = dataclasses.replace(request, task=dataclasses.replace(request.task, last=False))
        found: dict[int, Answer] = {}
        for reply in self.inner(request):
            if not isinstance(reply.update, AbsentClientError):
                self.bytes_down += count_bytes(pack(part_for(message, reply.client)))
            try:
                update = _of_type(exchange.update, reply.update)
                self.bytes_up += count_bytes(pack(update))
                found[reply.client] = read(reply.client, update)
            except RefusedUpdateError as why:
                absent = isinstance(why, AbsentClientError)
                kind = AbsentClientError if absent else RefusedUpdateError
                self.lost[reply.client] = kind(f"{stage} of the secure sum: {why}")
        return found


def _of_type(kind: type[Update], update: object) -> Update:
    """Return an update, if it is of the expected type."""
    if isinstance(update, RefusedUpdateError):
        raise update
    if not isinstance(update, kind):
        raise RefusedUpdateError(f"it is a {type(update).__name__}, expected a {kind.__name__}")
    return update
