"""The sums over their images that clients of FedDP-KMeans send.

If all clients have the same weight, as under client-level differential privacy, a client's sums are
divided by the number of its images. The ``usual`` norms below were measured on digits and MNIST,
with 100 clients and images of length 1.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    ClusterSums,
    SumOfClients,
    cluster_counts,
    fewest_for_products,
)
from ccfcpp.clustering.kmeans.server import nearest
from ccfcpp.clustering.systems.shallow.pixels import IMAGES_AT_A_TIME, PixelRule
from ccfcpp.clustering.systems.shallow.subspaces import Frame, flatten_symmetric
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, Images, Message, Update
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.update_format import Count, Part, Sum


@dataclass(frozen=True)
class Moments:
    """A client's sum over its images x, or over their outer products x xᵀ, in float64.

    Attributes:
        moments: Σ x of shape (r,), or the result of ``flatten_symmetric`` for Σ x xᵀ.
        images: Number of images, of shape ().
    """

    moments: Tensor
    images: Tensor

    @property
    def mean(self) -> Tensor:
        """``moments`` divided by the number of images; zeros without images."""
        return self.moments / self.images.clamp(min=torch.finfo(torch.float64).tiny)


@dataclass(frozen=True)
class ServerPoints:
    """Message with the server's points: a frame, and coordinates in it, float64 (points, r)."""

    frame: Frame
    points: Tensor


@dataclass(frozen=True)
class Weights:
    """Number of images nearest to each of the server's points: float64 of shape (points,)."""

    counts: Tensor


@dataclass(frozen=True)
class Centres:
    """Message of a Lloyd step: centroids, and which images count as members of a cluster.

    Attributes:
        frame: Coordinate system in which images are assigned to centroids.
        coordinates: The centroids in this system, float64 of shape (k, r).
        margin: An image counts if its distance to the nearest centroid is at most this share of
            its distance to the second nearest.
        sums_in: Coordinate system in which images are summed; None for ``frame``.
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
    ServerPoints,
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
class SumOfImages(SumOfClients[Message, Update]):
    """Base class of the client side of an exchange in which each client sends sums over its images.

    Attributes:
        rule: Maps images to vectors of pixels.
    """

    rule: PixelRule

    def of_client(self, message: Message, client: Client, randomness: Randomness) -> Update:
        """Return the sum over a client's images; if clients have equal weight, the mean."""
        part = self.sum_images(message, client)
        if not self.context.alike:
            return part
        means = {name: tensor / len(client) for name, tensor in pack(part).items()}
        return unpack(type(part), means)

    @abstractmethod
    def sum_images(self, message: Message, client: Client) -> Update:
        """Return the sum over a client's images."""

    def coordinates(self, frame: Frame, client: Client) -> Tensor:
        """Return the coordinates of a client's images in a frame, float64 of shape (samples, r)."""
        parts = torch.split(client.images, IMAGES_AT_A_TIME)
        return torch.cat([frame.coordinates(self.rule.points(part)) for part in parts])


class AddMoments(SumOfImages[Frame, Moments]):
    """Client side of a mean over all images; a client with fewer than ``least`` images adds 0."""

    def sum_images(self, message: Frame, client: Client) -> Moments:
        """Return the sum of a client's images, or of their outer products; 0 if they are few."""
        rows = self.coordinates(message, client)
        if self.exchange is PRODUCTS:
            moments = self._products(rows)
        else:
            moments = self._bound_rows(rows).sum(dim=0)
        least = self.context.least
        if self.exchange is PRODUCTS:
            least = fewest_for_products(least, rows.shape[1])
        enough = len(client) >= least
        return Moments(moments * enough, moments.new_tensor(len(client) * enough))

    def _bound_rows(self, rows: Tensor) -> Tensor:
        """Clip each image's row to the bound of the norm of what it adds to the moments, if any."""
        bounding = self.context.bounding
        return rows if bounding is None else bounding.rows(self.exchange, "moments", rows)

    def _products(self, rows: Tensor) -> Tensor:
        # The norm of x xᵀ is ‖x‖²: a factor on x xᵀ is its root on x.
        squares = rows.square().sum(dim=1, keepdim=True)
        shares = self._bound_rows(squares) / squares.clamp(min=1e-300)
        rows = rows * shares.sqrt()
        return flatten_symmetric(rows.T @ rows)


class CountNearest(SumOfImages[ServerPoints, Weights]):
    """Client side of the weights of the server's points: image counts, small ones set to 0."""

    def sum_images(self, message: ServerPoints, client: Client) -> Weights:
        """Count a client's images nearest to each server's point; small counts become 0."""
        labels = nearest(self.coordinates(message.frame, client), message.points)
        context, points = self.context, len(message.points)
        return Weights(
            cluster_counts(labels, points, self.exchange, context.bounding, context.least)
        )


class AddClearMembers(SumOfImages[Centres, ClusterSums]):
    """Client side of a Lloyd step: sums and counts of images that clearly belong to a cluster."""

    def sum_images(self, message: Centres, client: Client) -> ClusterSums:
        """Return a client's sums and counts by cluster, without images beyond the margin.

        Clusters with fewer than ``context.least`` of the client's images get 0.
        """
        points, centres = self.coordinates(message.frame, client), message.coordinates
        labels = nearest(points, centres)
        summed = points if message.sums_in is None else self.coordinates(message.sums_in, client)
        if message.margin < 1 and len(centres) > 1:
            first, second = torch.cdist(points, centres).topk(2, dim=1, largest=False).values.T
            clear = first <= message.margin * second
            labels, summed = labels[clear], summed[clear]
        return self.cluster_sums(summed, labels, len(centres))
