"""The sums that clients of FedDP-KMeans send.

Each part is a sum over a client's images. If all clients count alike, as differential privacy of
clients has it, a client's part is divided by the number of its images. What is usual was measured
on the digits and on MNIST, with 100 clients and images of length 1.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, cluster_counts, cluster_sums
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.clustering.systems.shallow.pixels import IMAGES_AT_A_TIME, PixelRule
from ccfcpp.clustering.systems.shallow.subspaces import Frame, half
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, Images, SummedWork, Task
from ccfcpp.engine.payload import pack, sum_updates, unpack
from ccfcpp.engine.update_format import Count, Part, Sum

Message = TypeVar("Message")
Update = TypeVar("Update")


@dataclass(frozen=True)
class Moments:
    """A sum over images, and their number: float64.

    Attributes:
        moments: Σ x of shape (r,), or Σ x xᵀ as ``half`` has it, of shape (r (r + 1) / 2,).
        images: Their number, of shape ().
    """

    moments: Tensor
    images: Tensor

    @property
    def mean(self) -> Tensor:
        """The mean over images; zeros without images."""
        return self.moments / self.images.clamp(min=torch.finfo(torch.float64).tiny)


@dataclass(frozen=True)
class Compared:
    """The server's points: coordinates in a frame, float64 of shape (points, r)."""

    frame: Frame
    points: Tensor


@dataclass(frozen=True)
class Weights:
    """Number of images nearest to each of the server's points: float64 of shape (points,)."""

    counts: Tensor


@dataclass(frozen=True)
class Centres:
    """The message of a Lloyd step: centroids, and which images count as members.

    Attributes:
        frame: The frame in which images are assigned.
        coordinates: The centroids in this frame, float64 of shape (k, r).
        margin: An image counts if its distance to the nearest centroid is at most this share of
            its distance to the second nearest.
        sums_in: The frame of the sums; None: ``frame``.
    """

    frame: Frame
    coordinates: Tensor
    margin: float = 1.0
    sums_in: Frame | None = None


_MOMENTS: dict[str, Part] = {"moments": Sum(), "images": Count(public=True)}
MEAN, PRODUCTS = (
    Exchange(
        name,
        Frame,
        Moments,
        _MOMENTS,
        images=Images(usual={"moments": of_image}),
        usual={"moments": of_client},
    )
    for name, of_image, of_client in (("mean", 0.7, 0.5), ("outer products", 0.4, 0.1))
)
WEIGHTS = Exchange(
    "weights",
    Compared,
    Weights,
    {"counts": Count()},
    images=Images(largest={"counts": 1.0}),
    usual={"counts": 0.35},
)
SEPARATED, LLOYD = (
    Exchange(
        name,
        Centres,
        ClusterSums,
        PARTS,
        images=Images(largest={"counts": 1.0}, usual={"sums": 0.6}),
        usual={"sums": 0.15, "counts": 0.4},
    )
    for name in ("separated sums", "sums")
)


@dataclass(frozen=True)
class SumOfImages(SummedWork[Message, Update]):
    """Base class of the client side of an exchange in which each client sends sums over its images.

    Attributes:
        exchange: The exchange in which the sum is sent.
        rule: Maps images to vectors of pixels.
        context: Sets the bound on one image's contribution, and whether clients weigh equally.
    """

    exchange: Exchange[Message, Update]
    rule: PixelRule
    context: ClientContext

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update:
        """Sum over the images of some clients."""
        return sum_updates(self._part(message, each) for each in clients)

    def _part(self, message: Message, client: Client) -> Update:
        part = self.over_images(message, client)
        if not self.context.alike:
            return part
        means = {name: tensor / len(client) for name, tensor in pack(part).items()}
        return unpack(type(part), means)

    @abstractmethod
    def over_images(self, message: Message, client: Client) -> Update:
        """Return the sum over a client's images."""

    def coordinates(self, frame: Frame, client: Client) -> Tensor:
        """Return a client's images as coordinates in a frame, float64 of shape (samples, r)."""
        parts = torch.split(client.images, IMAGES_AT_A_TIME)
        return torch.cat([frame.coordinates(self.rule.points(part)) for part in parts])

    def bounded(self, part: str, rows: Tensor) -> Tensor:
        """Return the rows of images, each within its bound if there is one."""
        bounding = self.context.bounding
        return rows if bounding is None else bounding.rows(self.exchange, part, rows)


class AddMoments(SumOfImages[Frame, Moments]):
    """The clients' sum of images or outer products; a client with too few images adds nothing."""

    def over_images(self, message: Frame, client: Client) -> Moments:
        """Return the sum, and the number of images."""
        rows = self.coordinates(message, client)
        moments = self._products(rows) if self.exchange is PRODUCTS else self._sum(rows)
        enough = len(client) >= self.context.least
        return Moments(moments * enough, moments.new_tensor(len(client) * enough))

    def _sum(self, rows: Tensor) -> Tensor:
        return self.bounded("moments", rows).sum(dim=0)

    def _products(self, rows: Tensor) -> Tensor:
        # The norm of x xᵀ is ‖x‖². What bounds it bounds x by the root.
        squares = rows.square().sum(dim=1, keepdim=True)
        shares = self.bounded("moments", squares) / squares.clamp(min=1e-300)
        rows = rows * shares.sqrt()
        return half(rows.T @ rows)


class CountNearest(SumOfImages[Compared, Weights]):
    """The clients' count of images nearest to each point; 0 for a client with too few images."""

    def over_images(self, message: Compared, client: Client) -> Weights:
        """Return the number of a client's images nearest to each point."""
        labels = nearest(self.coordinates(message.frame, client), message.points)
        context, points = self.context, len(message.points)
        return Weights(
            cluster_counts(labels, points, self.exchange, context.bounding, context.least)
        )


class AddClearMembers(SumOfImages[Centres, ClusterSums]):
    """The clients' sums and counts of images that clearly belong to a cluster."""

    def over_images(self, message: Centres, client: Client) -> ClusterSums:
        """Return sums and counts, without images halfway between centroids."""
        points, centres = self.coordinates(message.frame, client), message.coordinates
        labels = nearest(points, centres)
        summed = points if message.sums_in is None else self.coordinates(message.sums_in, client)
        if message.margin < 1 and len(centres) > 1:
            first, second = torch.cdist(points, centres).topk(2, dim=1, largest=False).values.T
            clear = first <= message.margin * second
            labels, summed = labels[clear], summed[clear]
        context = self.context
        return cluster_sums(
            summed, labels, len(centres), self.exchange, context.bounding, context.least
        )
