"""What clients add up in FedDP-KMeans.

Each part is a sum over a client's images. Where all clients count alike, as differential privacy of
clients has it, a client's part is divided by the number of its images. What is usual was measured
on the digits and on MNIST, with 100 clients and images of length 1.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, cluster_counts, cluster_sums
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.clustering.shallow.frames import Frame, half
from ccfcpp.clustering.shallow.pixels import IMAGES_AT_A_TIME, PixelRule
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, Images, SummedWork, Task
from ccfcpp.engine.parts import Count, Sum
from ccfcpp.engine.payload import added_up, pack, unpack

Message = TypeVar("Message")
Update = TypeVar("Update")

CONSTANT = 0.25
"""The last coordinate of each image in ``Totals``. The number of images thus costs no bound and no
noise of its own; a larger constant makes it more precise, and their mean less."""


@dataclass(frozen=True)
class Totals:
    """The sum of images, float64 of shape (r + 1,): coordinates, and ``CONSTANT`` for each."""

    totals: Tensor


@dataclass(frozen=True)
class Products:
    """Σ x xᵀ over images, as ``half`` has it: float64 of shape (r (r + 1) / 2,)."""

    products: Tensor


@dataclass(frozen=True)
class Compared:
    """Points of the server: coordinates in a frame, float64 of shape (points, r)."""

    frame: Frame
    points: Tensor


@dataclass(frozen=True)
class Weights:
    """To how many images each of the server's points is the nearest: float64 (points,)."""

    counts: Tensor


@dataclass(frozen=True)
class Centres:
    """Centroids whose members are to be added up.

    Attributes:
        frame: In which images are assigned.
        coordinates: The centroids in this frame, float64 of shape (k, r).
        margin: An image counts where its distance to the nearest centroid is at most this part of
            that to the second.
        sums_in: The frame of the sums; None: ``frame``.
    """

    frame: Frame
    coordinates: Tensor
    margin: float = 1.0
    sums_in: Frame | None = None


TOTALS = Exchange(
    "totals",
    Frame,
    Totals,
    {"totals": Sum()},
    images=Images(usual={"totals": 0.8}),
    usual={"totals": 0.55},
)
PRODUCTS = Exchange(
    "outer products",
    Frame,
    Products,
    {"products": Sum()},
    images=Images(usual={"products": 0.4}),
    usual={"products": 0.1},
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
    """A client's part of a sum.

    Attributes:
        exchange: In which it is sent.
        rule: Makes rows of images.
        crew: What bounds an image's part, and whether all clients count alike.
    """

    exchange: Exchange[Message, Update]
    rule: PixelRule
    crew: Crew

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update:
        """Add up the clients' parts."""
        return added_up(self._part(message, each) for each in clients)

    def _part(self, message: Message, client: Client) -> Update:
        part = self.over_images(message, client)
        if not self.crew.alike:
            return part
        means = {name: tensor / len(client) for name, tensor in pack(part).items()}
        return unpack(type(part), means)

    @abstractmethod
    def over_images(self, message: Message, client: Client) -> Update:
        """The sum over a client's images."""

    def coordinates(self, frame: Frame, client: Client) -> Tensor:
        """A client's images in a frame, float64 of shape (samples, r)."""
        parts = torch.split(client.images, IMAGES_AT_A_TIME)
        return torch.cat([frame.coordinates(self.rule.points(part)) for part in parts])

    def bounded(self, part: str, rows: Tensor) -> Tensor:
        """Rows of images, each within its bound where there is one."""
        bounding = self.crew.bounding
        return rows if bounding is None else bounding.rows(self.exchange, part, rows)

    def enough(self, client: Client) -> bool:
        """Whether a client has so many images that their sum is sent."""
        return len(client) >= self.crew.least


class AddImages(SumOfImages[Frame, Totals]):
    """The sum of images, and their number."""

    def over_images(self, message: Frame, client: Client) -> Totals:
        """Zeros where there are too few images."""
        rows = F.pad(self.coordinates(message, client), (0, 1), value=CONSTANT)
        return Totals(self.bounded("totals", rows).sum(dim=0) * self.enough(client))


class AddProducts(SumOfImages[Frame, Products]):
    """The sum of outer products."""

    def over_images(self, message: Frame, client: Client) -> Products:
        """Zeros where there are too few images."""
        rows = self.coordinates(message, client)
        # The norm of x xᵀ is ‖x‖². What bounds it bounds x by the root.
        squares = rows.square().sum(dim=1, keepdim=True)
        shares = self.bounded("products", squares) / squares.clamp(min=1e-300)
        rows = rows.nan_to_num(0, 0, 0) * shares.sqrt()
        return Products(half(rows.T @ rows) * self.enough(client))


class CountNearest(SumOfImages[Compared, Weights]):
    """How many images are nearest to each point."""

    def over_images(self, message: Compared, client: Client) -> Weights:
        """Count them."""
        labels = nearest(self.coordinates(message.frame, client), message.points)
        members = F.one_hot(labels, len(message.points))
        return Weights(cluster_counts(members, self.exchange, self.crew.bounding))


class AddMembers(SumOfImages[Centres, ClusterSums]):
    """Sums and counts of the members of clusters that are clearly theirs."""

    def over_images(self, message: Centres, client: Client) -> ClusterSums:
        """Leave out images between centroids."""
        points, centres = self.coordinates(message.frame, client), message.coordinates
        labels = nearest(points, centres)
        summed = points if message.sums_in is None else self.coordinates(message.sums_in, client)
        if message.margin < 1 and len(centres) > 1:
            first, second = torch.cdist(points, centres).topk(2, dim=1, largest=False).values.T
            clear = first <= message.margin * second
            labels, summed = labels[clear], summed[clear]
        crew = self.crew
        return cluster_sums(summed, labels, len(centres), self.exchange, crew.bounding, crew.least)
