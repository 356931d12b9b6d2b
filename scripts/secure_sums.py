"""Cost of a secure sum over a network: bytes and processor seconds of a client and the server.

All messages are written and read as over a network, without what carries them. One client checks
all signatures and is measured; the others sign, and do not check.

python scripts/secure_sums.py --clients 10 100 1000 --numbers 10000
"""

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.deployment.client.sums import KeyIdentity
from ccfcpp.deployment.keys.certificates import new_key
from ccfcpp.deployment.link.messages import deserialize, serialize
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AbsentClientError,
    AnyClientWork,
    ClientWork,
    Exchange,
    Figures,
    Nothing,
    RefusedUpdateError,
    ServerWork,
    Task,
    part_for,
)
from ccfcpp.engine.parts import Form, Spec, Sum
from ccfcpp.engine.stages import Request
from ccfcpp.engine.transport import Reply
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.client import works_in_sums
from ccfcpp.privacy.sums.identity import Floor, Guard
from ccfcpp.privacy.sums.stage import Summing

CPU = torch.device("cpu")
CONFIG = PrivacyConfig(secure_sums=True)


@dataclass
class Cost:
    """Cost and error of one secure sum.

    Attributes:
        up: Bytes that the measured client sends.
        down: Bytes that it receives.
        client: Its processor seconds.
        others: Those of all other clients.
        server: Those of the server.
        error: Largest difference from the sum in float64.
    """

    up: int = 0
    down: int = 0
    client: float = 0.0
    others: float = 0.0
    server: float = 0.0
    error: float = 0.0


@dataclass(frozen=True)
class Vector:
    """What adds up.

    Attributes:
        numbers: float64 of shape (numbers,).
    """

    numbers: Tensor


EXCHANGE = Exchange("sum", Nothing, Vector, {"numbers": Sum()})


class Sending(ClientWork[Nothing, Vector]):
    """All clients have the same vector.

    Args:
        vector: The vector.
    """

    exchange = EXCHANGE

    def __init__(self, vector: Tensor) -> None:
        self.vector = vector

    def local_updates(
        self, task: Task, message: Nothing, clients: Sequence[Client], randomness: Randomness
    ) -> list[Vector]:
        """The vector, once for each client."""
        return [Vector(self.vector) for _ in clients]


class Summed(ServerWork[None, Nothing, Vector]):
    """The server's half, as far as a stage asks for it.

    Args:
        numbers: How many a vector has.
    """

    exchange = EXCHANGE

    def __init__(self, numbers: int) -> None:
        self.numbers = numbers

    def broadcast(self, state: None) -> Nothing:
        """There is nothing to say."""
        return Nothing()

    def form(self, message: Nothing) -> Form:
        """A vector."""
        return {"numbers": Spec(torch.float64, (self.numbers,))}

    def aggregate(
        self, state: None, updates: Iterable[Vector], randomness: Randomness
    ) -> tuple[None, Figures]:
        """The sum is looked at before it gets here."""
        return None, {}


class Signing(KeyIdentity):
    """A client that does not check the others' signatures."""

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        """Accept it."""


@dataclass
class Clients:
    """Clients with works of their own, as on machines of their own.

    Attributes:
        works: By client and exchange.
        measured: The client that is measured.
        lost: How many others lose their masked vectors.
    """

    works: Sequence[dict[str, AnyClientWork]]
    measured: int
    lost: int
    cost: Cost = field(default_factory=Cost)

    def deliver(self, request: Request) -> Iterator[Reply]:
        """The answer of each client."""
        for member in request.members:
            yield Reply(member.id, self._answer(request.task, request.message, member))

    def _answer(self, task: Task, message: object, member: Member) -> object:
        work = self.works[member.id][task.exchange]
        sent = serialize(part_for(message, member.id))
        began = time.process_time()
        image = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
        client = Client(member.id, member.name, image)
        read = deserialize(work.exchange.message, sent, CPU)
        (update,) = work.local_updates(task, read, [client], Randomness(0))
        if isinstance(update, RefusedUpdateError):
            raise update
        answer = serialize(update)
        seconds = time.process_time() - began
        if member.id == self.measured:
            self.cost.up += len(answer)
            self.cost.down += len(sent)
            self.cost.client += seconds
        else:
            self.cost.others += seconds
        if task.exchange.endswith("under masks") and member.id < self.lost:
            return AbsentClientError("lost")
        return deserialize(work.exchange.update, answer, CPU)


def cost(clients: int, numbers: int, lost: int) -> Cost:
    """Measure a sum of equal vectors, some of which are lost after their shares were sent."""
    vector = torch.randn(numbers, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    private = [new_key() for _ in range(clients)]
    keys = [key.public_key() for key in private]
    works, measured = [], clients - 1
    for number, key in enumerate(private):
        kind = KeyIdentity if number == measured else Signing
        guard = Guard(kind(key, keys, b"cost"), Floor(), {})
        works.append(works_in_sums({EXCHANGE.name: Sending(vector)}, CONFIG, clients, guard))
    there = Clients(works, measured, lost)
    members = [Member(number, f"client {number}", 1) for number in range(clients)]
    request = Request(Summed(numbers), Task("cost", EXCHANGE.name, 0, 0), Nothing(), members)
    began = time.process_time()
    *_, reply = Summing(CONFIG).deliver(request, there.deliver)
    found, seconds = there.cost, time.process_time() - began
    assert isinstance(reply.update, Vector), reply.update
    error = float((reply.update.numbers - (clients - lost) * vector).abs().max())
    return replace(found, server=seconds - found.client - found.others, error=error)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each number of clients and of numbers, without and with a tenth lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--numbers", type=int, nargs="+", default=[10_000])
    given = parser.parse_args(arguments)
    print("| clients | numbers | lost | up, bytes | down, bytes | client, s | server, s | error |")
    print("|---|---|---|---|---|---|---|---|")
    cost(3, 10, 0)  # libraries are loaded
    for clients in given.clients:
        for numbers in given.numbers:
            for lost in (0, clients // 10):
                one = cost(clients, numbers, lost)
                print(
                    f"| {clients:,} | {numbers:,} | {lost} | {one.up:,} | {one.down:,} "
                    f"| {one.client:.3f} | {one.server:.3f} | {one.error:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
