"""The mean latent of all images, about which Fed-EMP compares directions.

Latents of all images have much in common, which says nothing of clusters.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.lessons import Lesson
from ccfcpp.clustering.vectors.preparation import Sums
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import AnyExchange, Exchange, SummedWork, Task
from ccfcpp.engine.parts import Count, Part, Sum
from ccfcpp.engine.payload import added_up, check_counts


@dataclass(frozen=True)
class MeanLatent(Lesson):
    """One exchange, once the encoder is trained.

    Attributes:
        encoder: The type of what is known.
        d: Length of a latent.
        latents: Of a client, (samples, d), by what is known.
    """

    encoder: type[Any]
    d: int
    latents: Callable[[Any, Client], Tensor]
    gives = "mean"

    @property
    def exchange(self) -> AnyExchange:  # type: ignore[override]
        """Sums of latents, and how many they are."""
        parts: dict[str, Part] = {"sums": Sum(), "counts": Count()}
        return Exchange("mean latent", self.encoder, Sums, parts, once=True)

    def work(self, crew: Crew) -> "SumLatents":
        """The clients' half."""
        return SumLatents(self, crew.least)

    def zeros(self) -> Sums:
        """Sums over no image."""
        return Sums(torch.zeros(self.d, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))

    def check(self, update: Sums, senders: Sequence[Member]) -> None:
        """Refuse a count that the clients' images cannot have."""
        check_counts(update.counts, senders)

    def learn(self, known: Any, total: Sums, randomness: Randomness) -> Any:
        """The encoder with the mean."""
        return replace(known, mean=total.sums / total.counts.clamp(min=1))


@dataclass(frozen=True)
class SumLatents(SummedWork[Any, Sums]):
    """The clients' half; nothing of a client with too few images."""

    lesson: MeanLatent
    least: int

    @property
    def exchange(self) -> AnyExchange:  # type: ignore[override]
        """The exchange is that of the lesson."""
        return self.lesson.exchange

    def local_sum(
        self, task: Task, message: Any, clients: Sequence[Client], randomness: Randomness
    ) -> Sums:
        """The sum of the latents of some clients."""
        return added_up(self._of(message, each) for each in clients)

    def _of(self, message: Any, client: Client) -> Sums:
        z = client.images.new_zeros((0, self.lesson.d), dtype=torch.float64)
        if len(client) >= self.least:
            z = self.lesson.latents(message, client).double()
        return Sums(z.sum(dim=0), z.new_full((1,), len(z)))
