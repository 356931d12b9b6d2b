"""Sums over clients in this process: with losses at each stage, and in the open."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Algorithm
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AbsentClientError,
    ClientSide,
    ClientWork,
    Exchange,
    Images,
    Metrics,
    Nothing,
    ServerWork,
    Task,
)
from ccfcpp.engine.federation import Federation
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.stages import Deliver, ExchangeRequest, Stage, combine_replies, wrap_transport
from ccfcpp.engine.transport import InProcess, Reply
from ccfcpp.engine.update_format import Spec, Sum, UpdateFormat
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import ClientLevel, ImageLevel
from ccfcpp.privacy.protection import Protection
from ccfcpp.privacy.sums.client import addition_of, flatten_parts, split_to_parts, wrap_works
from ccfcpp.privacy.sums.fixed_point import FixedPoint
from ccfcpp.privacy.sums.identity import Safeguard
from ccfcpp.privacy.sums.stage import Summing
from tests.support.federation import CPU

STAGES = ("keys", "shares", "under masks", "agreement", "unmasking")
"""How the tasks of a secure sum end, one after the other."""


@st.composite
def losses(draw: st.DrawFn) -> tuple[int, int, dict[int, str]]:
    """Some clients, a threshold, and at which stage some are lost; more than half are left."""
    count = draw(st.integers(2, 6))
    threshold = draw(st.integers(2, count))
    most = count - max(threshold, count // 2 + 1)
    gone = draw(st.lists(st.integers(0, count - 1), unique=True, max_size=most))
    return count, threshold, {7 * n + 2: draw(st.sampled_from(STAGES)) for n in gone}


Loss = Callable[[str, int], bool]
"""Takes a stage and a client's number: whether the client's answer is lost."""


@dataclass(frozen=True)
class Lossy:
    """A stage at which answers in a secure sum are lost.

    Attributes:
        loses: Which ones.
    """

    loses: Loss

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        """Clients have worked, and nothing has come back from some."""
        ends = [stage for stage in STAGES if request.task.exchange.endswith(stage)]
        for reply in inner(request):
            if any(self.loses(stage, reply.client) for stage in ends):
                yield replace(reply, update=AbsentClientError("it did not answer"))
            else:
                yield reply


@dataclass(frozen=True)
class InTheOpen:
    """A stage that adds up the rounded numbers of clients, by Python's integers.

    Attributes:
        form: How they are rounded.
    """

    form: FixedPoint

    def deliver(self, request: ExchangeRequest, inner: Deliver) -> Iterator[Reply]:
        """One reply for all clients."""
        if not request.exchange.travels:
            yield from inner(request)
            return
        addition = addition_of(PrivacyConfig(), request.exchange, request.message)
        like = addition.zeros(request.update_format)
        replies = list(inner(request))
        one = 2**self.form.fraction
        rows = [
            [round(x * one) for x in flatten_parts(addition.parts(reply.update)).tolist()]
            for reply in replies
        ]
        sums = [sum(column) / one for column in zip(*rows, strict=True)]
        totals = split_to_parts(torch.tensor(sums, dtype=torch.float64), like)
        yield combine_replies(
            addition.whole(request.update_format, totals, 1.0), replies, Reply(0, None)
        )


@dataclass(frozen=True)
class Vector:
    """What adds up: float64 of shape (numbers,)."""

    numbers: Tensor


VECTORS = Exchange("vectors", Nothing, Vector, {"numbers": Sum()}, images=Images())
TASK = Task("test", VECTORS.name, 3, 1)


class Sending(ClientWork[Nothing, Vector]):
    """Each client has a vector, by its number."""

    exchange = VECTORS

    def __init__(self, vectors: Mapping[int, Tensor]) -> None:
        self.vectors = vectors

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[Vector]:
        return [Vector(self.vectors[client.id]) for client in clients]


class Receiving(ServerWork[None, Nothing, Vector]):
    """The server knows how long vectors are."""

    exchange = VECTORS

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def broadcast(self, state: None) -> Nothing:
        return Nothing()

    def update_format(self, message: Nothing) -> UpdateFormat:
        return {"numbers": Spec(torch.float64, (self.numbers,))}

    def aggregate(
        self, state: None, updates: Iterable[Vector], randomness: Randomness
    ) -> tuple[None, Metrics]:
        raise NotImplementedError


def secure_sum(
    vectors: Mapping[int, Tensor],
    config: PrivacyConfig,
    loses: Loss = lambda stage, client: False,
    **guard: Safeguard,
) -> tuple[ExchangeRequest, list[Reply]]:
    """What comes of a secure sum of some vectors, by the client's number."""
    image = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    clients = [Client(number, f"client {number}", image) for number in vectors]
    works = wrap_works({VECTORS.name: Sending(vectors)}, config, len(clients), **guard)
    transport = InProcess(clients, ClientSide(works), ClientMemories(CPU, 0), Randomness(0))
    numbers = len(next(iter(vectors.values())))
    members = [client.member for client in clients]
    request = ExchangeRequest(Receiving(numbers), TASK, Nothing(), members)
    return request, list(wrap_transport(transport, [Lossy(loses), Summing(config)])(request))


def federation_of(
    system: str,
    algorithm: Algorithm[Any],
    clients: Sequence[Client],
    side: ClientSide,
    stages: Sequence[Stage] = (),
    availability: Availability | None = None,
    guard: ClientLevel | ImageLevel | None = None,
) -> Federation[Any, InProcess]:
    """All clients in this process, each of which sends for itself."""
    memories, seed = ClientMemories(CPU, budget=10**9), Randomness(0)
    transport = InProcess(clients, side, memories, seed, merges=False)
    members = [client.member for client in clients]
    who = availability or Availability()
    return Federation(system, algorithm, members, who, seed, transport, stages, guard)


def protected(
    config: PrivacyConfig,
    system: str,
    algorithm: Algorithm[Any],
    clients: Sequence[Client],
    side: ClientSide,
    mechanism: ClientLevel | ImageLevel | None = None,
    loses: Loss | None = None,
    availability: Availability | None = None,
) -> Federation[Any, InProcess]:
    """The same with what a run does for privacy, and perhaps with losses."""
    exchanges = [work.exchange for work in side.works.values()]
    protection = Protection(config, system, exchanges, len(clients), mechanism)
    works = ClientSide(protection.works(side.works), side.cohort)
    lossy: list[Stage] = [Lossy(loses)] if loses else []
    return federation_of(
        system, algorithm, clients, works, [*lossy, protection.stage], availability, mechanism
    )
