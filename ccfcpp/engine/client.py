"""A client: its images or vectors, and its local state between rounds."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ccfcpp.core.randomness import Randomness

Memory = dict[str, Tensor]
"""Local state of a client between rounds, as tensors by name."""


@dataclass
class Client:
    """A client: its samples, which never leave it, and its local state.

    Attributes:
        id: The client's number; it seeds the client's random numbers.
        name: Its name in reports.
        images: Its samples: uint8 images of shape (samples, channels, height, width), or vectors,
            floats of shape (samples, d).
        labels: int64 tensor of shape (samples,), if the system learns from labels.
        memory: The local state from round to round, such as optimizer moments. It is saved with
            the checkpoint and never sent. A new one is kept once the server has accepted the
            update that came with it. Idle clients' are in ``ccfcpp.engine.memories``.
        scratch: Results that it could compute again, such as the frozen model's representations.
            It is never saved.
        grouping: Source of the random groups of images that are in the same training steps; None:
            the run's source.
    """

    id: int
    name: str
    images: Tensor
    labels: Tensor | None = None
    memory: Memory = field(default_factory=dict)
    scratch: dict[str, Any] = field(default_factory=dict)
    grouping: Randomness | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def member(self) -> "Member":
        """The facts about this client that the server knows."""
        return Member(self.id, self.name, len(self))


@dataclass(frozen=True)
class Member:
    """The facts about a client that the server knows: number, name, and number of images."""

    id: int
    name: str
    samples: int


def select_memory(memory: Memory, part: str) -> Memory:
    """Return the tensors of a client's local state named ``part/…``, without that prefix."""
    prefix = f"{part}/"
    return {k.removeprefix(prefix): t for k, t in memory.items() if k.startswith(prefix)}


def sort_by_size(members: Iterable[Member]) -> list[Member]:
    """Sort clients by their number of samples, the largest first, as the round loop asks them.

    Clients that are trained at the same time then have similar sizes, and wait little.
    """
    return sorted(members, key=lambda member: (-member.samples, member.id))
