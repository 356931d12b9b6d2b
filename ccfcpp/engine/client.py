"""A client: its images and what it remembers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Memory = dict[str, Tensor]


@dataclass
class Client:
    """One holder of images, which never leave it.

    Attributes:
        id: The client's number; it seeds the client's random numbers.
        name: What reports call it.
        images: uint8 tensor of shape (samples, channels, height, width).
        labels: int64 tensor of shape (samples,), where the system learns from labels.
        memory: What the client keeps from round to round, such as optimizer moments. It is saved
            with the checkpoint and travels nowhere. While the client is idle,
            ``ccfcpp.engine.memories`` holds it.
        scratch: What it could compute again, such as the frozen model's representations. It is
            never saved.
    """

    id: int
    name: str
    images: Tensor
    labels: Tensor | None = None
    memory: Memory = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.images)


def memory_of(memory: Memory, part: str) -> Memory:
    """What a memory holds under ``part/…``; empty where it holds nothing of it."""
    prefix = f"{part}/"
    return {k.removeprefix(prefix): t for k, t in memory.items() if k.startswith(prefix)}


def cohorts(clients: Iterable[Client], size: int) -> Iterator[list[Client]]:
    """Groups of at most ``size`` clients, largest clients first.

    Clients of similar size are together, so that few wait for the others. The order does not depend
    on the size of the groups.
    """
    ordered = sorted(clients, key=lambda client: (-len(client), client.id))
    for first in range(0, len(ordered), size):
        yield ordered[first : first + size]
