"""Sums over clients and clusters, from which a server computes centroids; checks of centroids."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.errors import FederationError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import (
    AnyExchange,
    Exchange,
    Message,
    RefusedUpdateError,
    ServerWork,
    State,
    SummedWork,
    Task,
    Update,
)
from ccfcpp.engine.payload import check_counts, pack, sum_updates, unpack
from ccfcpp.engine.synchronised.contract import Bounding
from ccfcpp.engine.update_format import Count, Part, Rows, Spec, Sum, UpdateFormat

FARTHEST = 1e15
"""Largest allowed coordinate: squared distances stay far below float32's maximum."""


def check_near(centroids: Tensor) -> None:
    """Check that no finite coordinate is so large that distances overflow, since faiss would crash.

    Raises:
        RefusedUpdateError: A coordinate is too large.
    """
    if bool(((centroids.abs() > FARTHEST) & centroids.isfinite()).any()):
        raise RefusedUpdateError(f"centroids lie beyond {FARTHEST:g}")


def check_products(products: Tensor, counts: Tensor) -> None:
    """Check that sums of products of two offsets are possible for so many points within bounds.

    Raises:
        RefusedUpdateError: A sum is too large.
    """
    if bool((products.abs() > (2 * FARTHEST) ** 2 * counts.clamp(min=1)).any()):
        raise RefusedUpdateError(f"products are of points beyond {FARTHEST:g}")


def required_centroids(centroids: Tensor | None) -> Tensor:
    """Return the centroids after a check that they are not None.

    Raises:
        FederationError: They are None, since no client has sent any.
    """
    if centroids is None:
        raise FederationError(
            "no client has delivered centroids that can be used: all updates were refused, as "
            "the run says, or nobody took part; then lower availability.dropout_rate"
        )
    return centroids


@dataclass(frozen=True)
class CentroidUpdate:
    """A client's centroids and cluster sizes.

    Attributes:
        centroids: float32 of shape (at most k, dimensions).
        sizes: Number of samples in each cluster, float64 of shape (at most k,).
    """

    centroids: Tensor
    sizes: Tensor


def centroid_format(clusters: int, dimensions: int, least: int = 1) -> UpdateFormat:
    """Return the shapes and dtypes of a ``CentroidUpdate`` with ``least`` to ``clusters`` rows."""
    rows = Rows(clusters, least)
    centroids = Spec(torch.float32, (rows, dimensions))
    return {"centroids": centroids, "sizes": Spec(torch.float64, (rows,))}


def check_update(update: CentroidUpdate, senders: Sequence[Member]) -> None:
    """Check that local centroids and sizes are possible for the senders' samples.

    Raises:
        RefusedUpdateError: A coordinate is too large, a size is not positive, or the sizes sum to
            more samples than the senders have.
    """
    check_near(update.centroids)
    if not bool((update.sizes > 0).all()):
        raise RefusedUpdateError("cluster sizes must be positive, one for each centroid")
    check_counts(update.sizes, senders)


@dataclass(frozen=True)
class InitState:
    """Base class of server states whose initial centroids the library computes from sums.

    Attributes:
        centroids: Global centroids of shape (at most k, d); None before there are any.
        cells: Centres of m small groups of points (cells), float64 of shape (m, d), while they are
            computed (``kmeans.initialisation``).
        trials: Centroids of each initialisation, float64 of shape (restarts, k, d), while several
            are compared (``kmeans.restarts``).
        evidence: Evidence for each candidate k, of shape (candidates,), if the data decide on k.
    """

    centroids: Tensor | None = None
    cells: Tensor | None = None
    trials: Tensor | None = None
    evidence: Tensor | None = None


AnyInitState = TypeVar("AnyInitState", bound=InitState)


@dataclass(frozen=True)
class ClusterSums:
    """Sum and number of the points of each cluster.

    Attributes:
        sums: Sum of each cluster's points, float64 of shape (k, d).
        counts: Number of each cluster's points, float64 of shape (k,).
    """

    sums: Tensor
    counts: Tensor

    @staticmethod
    def zeros(clusters: int, dimensions: int) -> "ClusterSums":
        """Return zero sums and counts for a number of clusters and of dimensions."""
        sums = torch.zeros(clusters, dimensions, dtype=torch.float64)
        return ClusterSums(sums, sums[:, 0])


S = TypeVar("S", bound=ClusterSums)


def zero_small_clusters(total: S, least: int) -> S:
    """Return the sums, with those of clusters of fewer than ``least`` points set to 0."""
    if least == 0:
        return total
    enough = total.counts >= least
    kept = {
        name: tensor * enough.view(-1, *[1] * (tensor.ndim - 1))
        for name, tensor in pack(total).items()
    }
    return unpack(type(total), kept)


def fewest_for_products(least: int, dimensions: int) -> int:
    """Return the fewest points whose products are sent: with a floor, as many as dimensions.

    The products of fewer would reveal the directions of the points.
    """
    return max(least, dimensions) if least > 1 else least


PARTS: dict[str, Part] = {"sums": Sum(count="counts"), "counts": Count()}
"""Kinds of the fields of ``ClusterSums`` (count or sum), for the declaration of an exchange."""


def sum_by_group(labels: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Return the sum of the rows of each group, float64 of shape (groups, d).

    On a GPU it is a product with a one-hot matrix, which is deterministic, unlike ``index_add_``.

    Args:
        labels: Group of each row, int64 of shape (samples,).
        rows: Tensor of shape (samples, d).
        groups: Number of groups.
    """
    if rows.is_cuda:
        return F.one_hot(labels, groups).double().T @ rows.double()
    zeros = torch.zeros(groups, rows.shape[1], dtype=torch.float64)
    return zeros.index_add_(0, labels, rows.double())


def cluster_sums(
    points: Tensor,
    labels: Tensor,
    clusters: int,
    exchange: AnyExchange,
    bounding: Bounding | None,
    least: int,
) -> ClusterSums:
    """Sum and count the points of each cluster.

    Args:
        points: Points of shape (samples, d).
        labels: Cluster of each point, int64 of shape (samples,).
        clusters: Number of clusters k.
        exchange: The exchange in which the sums are sent.
        bounding: Clips the contribution of each image; None: without bounds.
        least: Fewest points of a cluster whose sums are sent; those of smaller clusters become 0.
    """
    enough = torch.bincount(labels, minlength=clusters) >= least
    summed = points if bounding is None else bounding.rows(exchange, "sums", points.double())
    sums = sum_by_group(labels, summed, clusters) * enough.unsqueeze(1)
    return ClusterSums(sums, cluster_counts(labels, clusters, exchange, bounding, least))


def cluster_counts(
    labels: Tensor, clusters: int, exchange: AnyExchange, bounding: Bounding | None, least: int
) -> Tensor:
    """Count each cluster's points, float64 of shape (k,); 0 if there are fewer than ``least``.

    Arguments are as in ``cluster_sums``. With ``bounding``, a point may count less than 1.
    """
    members = torch.bincount(labels, minlength=clusters).double()
    enough = members >= least
    if bounding is not None:
        ones = torch.ones(len(labels), 1, dtype=torch.float64, device=labels.device)
        members = sum_by_group(labels, bounding.rows(exchange, "counts", ones), clusters).flatten()
    return members * enough


@dataclass(frozen=True)
class SumOfClients(SummedWork[Message, Update]):
    """Base class of the client side of exchanges whose sums are computed client by client.

    Attributes:
        exchange: The exchange in which the sums are sent.
        context: Holds the bound on one image's contribution, and the fewest images in a sum.
    """

    exchange: Exchange[Message, Update]
    context: ClientContext

    @abstractmethod
    def of_client(self, message: Message, client: Client, randomness: Randomness) -> Update:
        """Return the sums over a client's samples; ``randomness`` is the client's source."""

    def local_sum(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Update:
        """Return the sums over some clients' samples."""
        return sum_updates(
            self.of_client(message, each, randomness.of_client(each.id)) for each in clients
        )

    def cluster_sums(self, points: Tensor, labels: Tensor, clusters: int) -> ClusterSums:
        """Sum and count the points of each cluster by this context; see the function."""
        bounding, least = self.context.bounding, self.context.least
        return cluster_sums(points, labels, clusters, self.exchange, bounding, least)


class SumsWork(ServerWork[State, Message, S]):
    """Base class of the server side of exchanges in which clients sum each cluster's points."""

    def check(self, message: Message, update: S, senders: Sequence[Member]) -> None:
        """Check that the sums are possible for the senders' images.

        Raises:
            RefusedUpdateError: A count is negative, the counts exceed the number of the senders'
                images, or a coordinate of a mean is too large.
        """
        check_counts(update.counts, senders)
        if bool((update.sums.abs() > FARTHEST * update.counts.clamp(min=1).unsqueeze(1)).any()):
            raise RefusedUpdateError(f"means lie beyond {FARTHEST:g}")

    def project_noisy(self, message: Message, update: S) -> S:
        """Set counts that noise made negative to 0."""
        return replace(update, counts=update.counts.clamp(min=0))


def cluster_means(updates: Iterable[ClusterSums], empty: Tensor, least: float = 1) -> Tensor:
    """Return the mean of each cluster's points over all clients.

    Args:
        updates: Sums of clients, at least one.
        empty: Returned in place of the mean of an empty cluster, of shape (k, d) or (d,).
        least: Smallest possible count of a non-empty cluster: 1, unless points have weights.

    Returns:
        Tensor of shape (k, d), in the dtype and on the device of ``empty``.
    """
    total = sum_updates(updates)
    counts = total.counts.unsqueeze(1)
    means = (total.sums / counts.clamp(min=least)).to(empty)
    return torch.where(counts.to(empty.device) > 0, means, empty)
