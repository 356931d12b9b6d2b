"""Cost of secure sums: processor seconds of all clients and the server, and bytes of a client.

python scripts/secure_sums.py --clients 10 100 --numbers 10000
"""

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AbsentClientError,
    ClientSide,
    ClientWork,
    Exchange,
    Figures,
    Nothing,
    ServerWork,
    Task,
)
from ccfcpp.engine.memories import ClientMemories
from ccfcpp.engine.parts import Form, Spec, Sum
from ccfcpp.engine.stages import Deliver, Request, through
from ccfcpp.engine.transport import InProcess, Reply
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.client import works_in_sums
from ccfcpp.privacy.sums.fixed_point import FixedPoint
from ccfcpp.privacy.sums.masks import sealed_for, stream
from ccfcpp.privacy.sums.protocol import Participant, Terms
from ccfcpp.privacy.sums.shares import joined, split
from ccfcpp.privacy.sums.stage import Summing

FORM = FixedPoint(64, 32)


@dataclass(frozen=True)
class Cost:
    """Cost and error of one secure sum.

    Attributes:
        seconds: Processor seconds of all clients and the server together.
        up: Bytes that a client sends on average.
        down: Bytes that a client receives on average.
        error: Largest difference from the sum in float64.
    """

    seconds: float
    up: float
    down: float
    error: float


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


@dataclass(frozen=True)
class Losing:
    """A stage that loses the masked vectors of the first clients.

    Attributes:
        lost: Of how many.
    """

    lost: int

    def deliver(self, request: Request, inner: Deliver) -> Iterator[Reply]:
        """Replies of which some say that nothing came."""
        masked = request.task.exchange.endswith("under masks")
        for reply in inner(request):
            gone = masked and reply.client < self.lost
            yield replace(reply, update=AbsentClientError("lost")) if gone else reply


def cost(clients: int, numbers: int, lost: int) -> Cost:
    """Measure a sum of equal vectors, some of which are lost after their shares were sent."""
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    there = [Client(number, f"client {number}", images) for number in range(clients)]
    vector = torch.randn(numbers, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    config = PrivacyConfig(secure_sums=True)
    works = works_in_sums({EXCHANGE.name: Sending(vector)}, config, clients)
    memories = ClientMemories(torch.device("cpu"), budget=0)
    transport = InProcess(there, ClientSide(works), memories, Randomness(0))
    task = Task("cost", EXCHANGE.name, 0, 0)
    request = Request(Summed(numbers), task, Nothing(), [client.member for client in there])
    began = time.process_time()
    *_, reply = through(transport, [Losing(lost), Summing(config)])(request)
    seconds = time.process_time() - began
    assert isinstance(reply.update, Vector)
    error = float((reply.update.numbers - (clients - lost) * vector).abs().max())
    up, down = reply.bytes_up or 0, reply.bytes_down or 0
    return Cost(seconds, up / clients, down / clients, error)


def cost_of_one(clients: int, numbers: int) -> tuple[float, float]:
    """Measure the seconds of one of many clients, and those of the server to remove the masks."""
    terms = Terms(b"cost", 2 * clients // 3 + 1, FORM, clients)
    there = [Participant(number, terms) for number in range(clients)]
    roster = {each.number: each.keys() for each in there}
    one, *others = there
    began = time.process_time()
    boxes = one.shares(roster)
    seconds = time.process_time() - began
    # The key that two clients agree on is the same at both.
    sent = {
        other.number: sealed_for(one.seal_with(other.number), other.number, bytes(128), b"cost")
        for other in others
    }
    assert len(boxes) == len(sent)
    vector = FORM.encoded(torch.ones(numbers, dtype=torch.float64), clients)
    began = time.process_time()
    one.receive(sent)
    one.masked(vector)
    one.revealed(range(clients))
    seconds += time.process_time() - began
    shares = dict(enumerate(split(bytes(32), clients, terms.threshold)))
    joined(shares, terms.threshold)  # The weights are cached for all seeds.
    began = time.process_time()
    stream(joined(shares, terms.threshold), numbers, FORM)
    return seconds, clients * (time.process_time() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each number of clients and of numbers, without and with a tenth lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--numbers", type=int, nargs="+", default=[10_000])
    parser.add_argument("--one-of", type=int, help="measure one of so many clients")
    given = parser.parse_args(arguments)
    if given.one_of:
        for numbers in given.numbers:
            client, server = cost_of_one(given.one_of, numbers)
            shown = f"one of {given.one_of:,}, {numbers:,} numbers"
            print(f"{shown}: {client:.3f} s, server {server:.2f} s")
        return
    print("| clients | numbers | lost | seconds | up, bytes | down, bytes | error |")
    print("|---|---|---|---|---|---|---|")
    for clients in given.clients:
        for numbers in given.numbers:
            for lost in (0, clients // 10):
                one = cost(clients, numbers, lost)
                print(
                    f"| {clients:,} | {numbers:,} | {lost} | {one.seconds:.3f} | {one.up:,.0f} "
                    f"| {one.down:,.0f} | {one.error:.1e} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
