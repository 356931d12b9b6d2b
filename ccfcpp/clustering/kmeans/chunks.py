"""Assignment and sums of many points in blocks, to bound memory."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
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
"""8 MB in double precision, which caches hold; larger blocks are slower."""


def blocks(points: Tensor, width: int = 1) -> Iterable[Tensor]:
    """Split rows into blocks of about a million numbers.

    Args:
        points: Tensor of shape (samples, …).
        width: Numbers that are computed for a row, if they are more than it has.
    """
    return torch.split(points, max(1, _NUMBERS_AT_A_TIME // max(width, points[:1].numel())))


@dataclass(frozen=True)
class SumBlocks(SummedWork[Message, S]):
    """Base class of the clients' sums over their images or vectors.

    Attributes:
        context: Sets the bound on one image's contribution, and the fewest images in a sum.
    """

    context: ClientContext

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> S:
        """Sum over the clients' images in blocks, without sums over too few images."""
        with section(f"{self.exchange.name}: clients"):
            # An accelerator has one queue.
            threads = 1 if clients[0].images.is_cuda else None
            return sum_updates(
                map_in_threads(lambda each: self._of(message, each.images), clients, threads)
            )

    def _of(self, message: Message, images: Tensor) -> S:
        parts = blocks(images, self.width(message, images[:1].numel()))
        return self.drop_small_sums(
            sum_updates(self.block(message, part) for part in parts), len(images)
        )

    @abstractmethod
    def width(self, message: Message, row: int) -> int:
        """Return how many numbers are held per image of ``row`` numbers, to size the blocks."""

    @abstractmethod
    def block(self, message: Message, images: Tensor) -> S:
        """Sum over a block of a client's images."""

    def drop_small_sums(self, total: S, samples: int) -> S:
        """Return the sums that a client may send: those over too few images become 0."""
        return zero_small_clusters(total, self.context.least)


def squared_distances(points: Tensor, centroids: Tensor) -> Tensor:
    """Return ‖x − c‖² of points and centroids, (samples, k); rounding errors become 0."""
    x, c = offsets(points, centroids)
    sizes = x.square().sum(dim=1, keepdim=True) + c.square().sum(dim=1)
    found = torch.addmm(sizes, x, c.T, alpha=-2)
    return found.masked_fill_(found <= 4 * torch.finfo(x.dtype).eps * sizes, 0)
