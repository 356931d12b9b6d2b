"""Server side of sums: the step that replaces clients' updates by one, made from their sum."""

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
from ccfcpp.privacy.noise.mechanism import clip_client_parts
from ccfcpp.privacy.sums.agreement import terms_of
from ccfcpp.privacy.sums.client import addition_of, flatten_parts, split_to_parts
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
    """Server's step that replaces the clients' updates by one update, made from their sum.

    An exchange that is computed without sending passes unchanged.
    """

    def __init__(self, config: PrivacyConfig, mechanism: Level | None = None) -> None:
        self.config = config
        self.mechanism = mechanism

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        """Yield one reply for all clients in the sum, and one for each other client.

        ``inner`` sends a request to clients and yields their replies.
        """
        if not request.exchange.travels:
            yield from inner(request)
            return
        addition = addition_of(self.config, request.exchange, request.message)
        like = addition.zeros(request.update_format)
        kind = SecureSum if self.config.secure_sums else OpenSum
        total = kind(request, inner, like, self)
        included: list[Reply] = []
        refused: dict[int, RefusedUpdateError] = {}
        reached = 0
        try:
            with section("sums: keys"):
                total.begin()
            for reply in total.replies():
                refusal = self._try_to_add(total, reply)
                if refusal is None:
                    # Its update is in the sum, and need not be stored.
                    included.append(dataclasses.replace(reply, update=None))
                    reached += len(reply.clients)
                else:
                    refused |= dict.fromkeys(reply.clients, refusal)
                    yield dataclasses.replace(
                        reply, update=refusal, bytes_up=count_sent_bytes(reply)
                    )
            with section("sums: total"):
                contributors = self.mechanism.contributors if self.mechanism else 1.0
                update = addition.whole(request.update_format, total.published(), contributors)
        except RefusedUpdateError as refusal:
            update = refusal = _explain(refusal, total.lost | refused)
            left = [member.id for member in request.members if member.id not in refused]
            lost = {n: reason for n in left if (reason := total.lost.get(n)) is not None}
            yield from (Reply(n, reason, bytes_down=0) for n, reason in lost.items())
            included = [Reply(number, refusal) for number in left if number not in lost]
        if not included:
            # Each client has been refused by itself.
            return
        # Replies of clients that were refused by themselves count their own bytes.
        down = count_bytes(pack(request.message)) * reached + total.bytes_down
        counts = Reply(
            0,
            None,
            noised=self.mechanism is not None,
            bytes_up=total.bytes_up,
            bytes_down=down,
        )
        yield combine_replies(update, included, counts)

    def _try_to_add(self, total: "Total", reply: Reply) -> RefusedUpdateError | None:
        """Add a reply's update to the sum; return the reason if it cannot be added."""
        if isinstance(reply.update, RefusedUpdateError):
            return reply.update
        try:
            with section("sums: vectors"):
                total.add(reply)
        except RefusedUpdateError as refusal:
            return refusal
        return None


def _explain(
    refusal: RefusedUpdateError, reasons: Mapping[int, RefusedUpdateError]
) -> RefusedUpdateError:
    """Add to the reason why there is no sum that of the first refused client, if there is one."""
    for number, reason in sorted(reasons.items()):
        if not isinstance(reason, AbsentClientError):
            return RefusedUpdateError(f"{refusal}; client {number}: {reason}")
    return refusal


class Total(ABC):
    """Base class of an exchange's sum over clients; methods raise ``RefusedUpdateError``."""

    def __init__(
        self, request: ExchangeRequest, inner: Deliver, like: Addends, stage: Summing
    ) -> None:
        self.request = request
        self.inner = inner
        self.like = like
        self.stage = stage
        self.lost: dict[int, RefusedUpdateError] = {}
        """Why clients have no part in the sum, by their numbers."""
        # Bytes that clients have sent and received for it, without the message of the exchange.
        self.bytes_up = self.bytes_down = 0

    def begin(self) -> None:  # noqa: B027 - most sums need nothing
        """Prepare the sum before the clients work."""

    @abstractmethod
    def replies(self) -> Iterator[Reply]:
        """Yield the clients' replies to the request."""

    @abstractmethod
    def add(self, reply: Reply) -> None:
        """Add a client's reply to the sum; raise ``RefusedUpdateError`` if it is not valid."""

    @abstractmethod
    def total(self) -> Tensor:
        """Return the sum of the clients' vectors, float64 of shape (numbers,)."""

    def published(self) -> Addends:
        """Return the sums over clients by name, with noise if the server adds any."""
        totals, mechanism = split_to_parts(self.total(), self.like), self.stage.mechanism
        return mechanism.published(self.request.exchange, totals) if mechanism else totals

    def ask(
        self, exchange: AnyExchange, message: object, clients: Iterable[int]
    ) -> ExchangeRequest:
        """Return a request to ``clients``, by number, to answer ``message`` in ``exchange``."""
        task = dataclasses.replace(self.request.task, exchange=exchange.name)
        members = [self.request.member[number] for number in clients]
        return dataclasses.replace(self.request, task=task, message=message, members=members)


class OpenSum(Total):
    """Sum without masks: the server sees the clipped parts of every client's update."""

    _total: Tensor | None = None

    def replies(self) -> Iterator[Reply]:
        """Yield the clients' replies, which hold clipped parts."""
        exchange = within_bounds(self.request.exchange)
        return self.inner(self.ask(exchange, self.request.message, self.request.member))

    def add(self, reply: Reply) -> None:
        """Check a client's parts (tensors of its update), clip them again, and add them."""
        parts = _of_type(BoundedParts, reply.update).parts
        if _dtypes_and_shapes(parts) != _dtypes_and_shapes(self.like):
            raise RefusedUpdateError(f"its parts are not those of {self.request.exchange.name}")
        if name := find_non_finite(parts):
            raise RefusedUpdateError(f"{name} holds NaN or Inf")
        # Honest clients have clipped their parts; dishonest or outdated ones may send anything.
        parts = clip_client_parts(self.stage.config, self.request.exchange, parts)
        vector = flatten_parts(parts)
        # A sum of several clients has the size of what each of them would have sent.
        self.bytes_up += vector.nbytes * len(reply.clients)
        self._total = vector if self._total is None else self._total.add_(vector)

    def total(self) -> Tensor:
        """Return the sum of the clients' parts so far, as one vector, float64 (numbers,)."""
        if self._total is None:
            raise RefusedUpdateError("there is nothing to add up")
        return self._total


def _dtypes_and_shapes(parts: Addends) -> dict[str, tuple[torch.dtype, torch.Size]]:
    return {name: (part.dtype, part.shape) for name, part in parts.items()}


class SecureSum(Total):
    """Sum of which the server sees only masked numbers and, at the end, the total.

    Before the exchange, clients send public keys, and then encrypted shares of their secrets. In
    the exchange, each receives the shares for it, and answers with its masked numbers. After it,
    the clients whose numbers have arrived agree on who is in the sum, and then send shares to
    remove the masks.
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
        """Collect the clients' public keys, and then their encrypted key shares."""
        collector, asked = self.collector, [member.id for member in self.request.members]
        offers = self._ask_clients(KEYS, Begun(numbers_of(asked)), asked, "keys", self._read_offer)
        known = letters_of_neighbours(collector.neighbours(offers))
        boxes = self._ask_clients(SHARES, known, [*offers], "shares", self._read_boxes)
        self._mail = Mail.of(*collector.route_shares(boxes))
        self._sharers = [*boxes]
        self.bytes_down += sum(count_bytes(pack(self._mail.to(number))) for number in self._sharers)

    def replies(self) -> Iterator[Reply]:
        """Yield masked numbers of the clients that sent shares, and reasons for the others."""
        for number, reason in self.lost.items():
            yield Reply(number, reason, bytes_down=0)
        masked = under_masks(self.request.exchange)
        message = WithMail(self.request.message, self._mail)
        yield from self.inner(self.ask(masked, message, self._sharers))

    def add(self, reply: Reply) -> None:
        """Add a client's masked numbers to the total."""
        numbers = sum(part.numel() for part in self.like.values())
        update = _of_type(MaskedParts, reply.update)
        self.collector.take(reply.client, *update.read(self.terms.form, numbers))
        self.bytes_up += count_bytes(pack(update))

    def total(self) -> Tensor:
        """Let clients agree on who is in the sum, remove the masks, and return the sum."""
        collector = self.collector
        arrived = collector.arrived()
        message = Letters.of(arrived, TAG_BYTES)
        tags = self._ask_clients(
            AGREEMENT, message, [*arrived], "agreement", lambda _, update: update.read(TAG_BYTES)
        )
        included = Letters.of(collector.included(tags), TAG_BYTES)
        revealed = self._ask_clients(
            UNMASKING, included, [*tags], "unmasking", lambda _, update: update.read()
        )
        return self.terms.form.decode(collector.total(revealed))

    def published(self) -> Addends:
        """Return the sums over clients by name, with the noise that the server or clients add."""
        own = OwnNoise.of(self.stage.config, self.request.exchange, self.terms)
        return own.scaled(split_to_parts(self.total(), self.like)) if own else super().published()

    def _read_offer(self, number: int, update: Keys) -> Offer:
        offer = update.read()
        self.collector.check(number, offer)
        return offer

    def _read_boxes(self, number: int, update: ClientRows) -> dict[int, bytes]:
        boxes = update.read(BOX_BYTES)
        if boxes.keys() != self.collector.others(number):
            raise RefusedUpdateError("they are not for all holders")
        return boxes

    def _ask_clients(
        self,
        exchange: Exchange[Message, Update],
        message: Message,
        clients: Iterable[int],
        stage: str,
        read: Callable[[int, Update], Answer],
    ) -> dict[int, Answer]:
        """Ask clients at ``stage``; return the valid answers by client. The others drop out."""
        request = self.ask(exchange, message, clients)
        request = dataclasses.replace(request, task=dataclasses.replace(request.task, last=False))
        answers: dict[int, Answer] = {}
        for reply in self.inner(request):
            if not isinstance(reply.update, AbsentClientError):
                self.bytes_down += count_bytes(pack(part_for(message, reply.client)))
            try:
                update = _of_type(exchange.update, reply.update)
                self.bytes_up += count_bytes(pack(update))
                answers[reply.client] = read(reply.client, update)
            except RefusedUpdateError as why:
                absent = isinstance(why, AbsentClientError)
                kind = AbsentClientError if absent else RefusedUpdateError
                self.lost[reply.client] = kind(f"{stage} of the secure sum: {why}")
        return answers


def _of_type(kind: type[Update], update: object) -> Update:
    """Return the update if it is of the expected type; else raise ``RefusedUpdateError``."""
    if isinstance(update, RefusedUpdateError):
        raise update
    if not isinstance(update, kind):
        raise RefusedUpdateError(f"it is a {type(update).__name__}, expected a {kind.__name__}")
    return update
