"""Sums over many points in blocks, so that memory stays bounded."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import S, zero_small_clusters
from ccfcpp.clustering.kmeans.server import offsets
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Message, SummedWork, Task
from ccfcpp.engine.payload import sum_updates
from ccfcpp.engine.threads import map_in_threads

_NUMBERS_AT_A_TIME = 1 << 20
"""8 MB of float64, which fit into the cache; larger blocks are slower."""
_FEW_NUMBERS, _MANY_CLIENTS = 1 << 13, 256
"""Where there are more clients than the second number, some that together have no more numbers than
the first are summed as one: a call costs more than its arithmetic."""


def blocks(points: Tensor, width: int = 1) -> Iterable[Tensor]:
    """Split a tensor's rows into blocks of about a million numbers.

    Args:
        points: Tensor of shape (samples, …).
        width: How many numbers are computed for a row, if they are more than the row has.
    """
    return torch.split(points, max(1, _NUMBERS_AT_A_TIME // max(width, points[:1].numel())))


def join_small(holdings: Iterable[Tensor], most: int = _FEW_NUMBERS) -> Iterator[Tensor]:
    """Join neighbouring tensors along their first dimension, where they have few numbers together.

    Args:
        holdings: Tensors that differ in their first dimension alone.
        most: Largest number of numbers of what is joined.
    """
    waiting: list[Tensor] = []
    numbers = 0
    for each in holdings:
        if waiting and numbers + each.numel() > most:
            yield torch.cat(waiting) if len(waiting) > 1 else waiting[0]
            waiting, numbers = [], 0
        waiting.append(each)
        numbers += each.numel()
    if waiting:
        yield torch.cat(waiting) if len(waiting) > 1 else waiting[0]


@dataclass(frozen=True)
class SumBlocks(SummedWork[Message, S]):
    """Base class of the client side of exchanges that sum over images, a block at a time.

    Attributes:
        context: Holds the bound on one image's contribution, and the fewest images in a sum.
    """

    context: ClientContext

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> S:
        """Return the sums over the clients' images; sums over too few images are 0."""
        with section(f"{self.exchange.name}: clients"):
            # Threads do not speed up an accelerator.
            threads = 1 if clients[0].images.is_cuda else None
            holdings: Iterable[Tensor] = (client.images for client in clients)
            # Fewer are summed one by one, so that all bits are those of clients on machines apart.
            if self.context.least == 0 and len(clients) > _MANY_CLIENTS:
                holdings = join_small(holdings)
            return sum_updates(
                map_in_threads(lambda each: self._sum_client(message, each), [*holdings], threads)
            )

    def _sum_client(self, message: Message, images: Tensor) -> S:
        parts = blocks(images, self.width(message))
        return self.drop_small_sums(
            sum_updates(self.block(message, part) for part in parts), len(images)
        )

    @abstractmethod
    def width(self, message: Message) -> int:
        """Return how many numbers are computed for an image; the more, the fewer a block has."""

    @abstractmethod
    def block(self, message: Message, images: Tensor) -> S:
        """Return the sums over a block (some) of a client's images or vectors."""

    def drop_small_sums(self, total: S, samples: int) -> S:
        """Return the sums over a client's images, but 0 for clusters of too few images."""
        return zero_small_clusters(total, self.context.least)


def squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """Return ‖x − c‖² of points x and centroids c, (samples, k), with rounding errors set to 0."""
    x, c = offsets(points, centroids)
    sizes = x.square().sum(dim=1, keepdim=True) + c.square().sum(dim=1)
    squares = torch.addmm(sizes, x, c.T, alpha=-2)
    return squares.masked_fill_(squares <= 4 * torch.finfo(x.dtype).eps * sizes, 0)
