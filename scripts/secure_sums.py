"""Cost of secure sums: processor seconds of all clients and the server, and bytes of a client.

python scripts/secure_sums.py --clients 10 100 --numbers 10000
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from ccfcpp.privacy.secure_sums_here import SecureSum

from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Task
from ccfcpp.privacy.sums.fixed_point import FixedPoint
from ccfcpp.privacy.sums.masks import sealed_for, stream
from ccfcpp.privacy.sums.protocol import Participant, Terms
from ccfcpp.privacy.sums.shares import joined, split

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


def cost(clients: int, numbers: int, lost: int) -> Cost:
    """Measure a sum of equal vectors, some of which are lost after their shares were sent."""
    members = [Member(number, f"client {number}", 1) for number in range(clients)]
    vector = torch.randn(numbers, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    began = time.process_time()
    total = SecureSum(
        Task("cost", "sum", 0, 0),
        members,
        FORM,
        is_lost=lambda stage, client: stage == "masked vector" and client < lost,
    )
    total.begin()
    for member in members:
        total.add(member.id, vector)
    found = total.total()
    seconds = time.process_time() - began
    error = float((found - (clients - lost) * vector).abs().max())
    return Cost(seconds, total.bytes_up / clients, total.bytes_down / clients, error)


def cost_of_one(clients: int, numbers: int) -> tuple[float, float]:
    """Measure the seconds of one of many clients, and those of the server to remove the masks."""
    terms = Terms(b"cost", 2 * clients // 3 + 1, FORM)
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
