"""Checks of centroids, and the sums from which a server computes centroids."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.core.errors import FederationError
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import AnyExchange, Message, RefusedUpdateError, ServerWork, State
from ccfcpp.engine.payload import check_counts, pack, sum_updates, unpack
from ccfcpp.engine.synchronised.contract import Bounding
from ccfcpp.engine.update_format import Count, Part, Rows, Spec, Sum, UpdateFormat

FARTHEST = 1e15
"""Largest coordinate: squared distances in many dimensions stay far below float32's maximum."""


def check_near(centroids: Tensor) -> None:
    """Refuse centroids whose distances may not be finite, since faiss would end the process.

    Raises:
        RefusedUpdateError: A coordinate is too large.
    """
    if bool(((centroids.abs() > FARTHEST) & centroids.isfinite()).any()):
        raise RefusedUpdateError(f"centroids lie beyond {FARTHEST:g}")


def required_centroids(centroids: Tensor | None) -> Tensor:
    """Return the centroids, which must exist.

    Raises:
        FederationError: No client has sent any.
    """
    if centroids is None:
        raise FederationError(
            "no client has delivered centroids that can be used: see the refused updates above"
        )
    return centroids


@dataclass(frozen=True)
class CentroidUpdate:
    """A client's centroids, float32 (at most k, dimensions), and the samples of each, float64."""

    centroids: Tensor
    sizes: Tensor


def centroid_format(clusters: int, dimensions: int, least: int = 1) -> UpdateFormat:
    """Return the shapes and dtypes of a ``CentroidUpdate`` of at most ``clusters`` centroids."""
    rows = Rows(clusters, least)
    centroids = Spec(torch.float32, (rows, dimensions))
    return {"centroids": centroids, "sizes": Spec(torch.float64, (rows,))}


def check_update(update: CentroidUpdate, senders: Sequence[Member]) -> None:
    """Refuse local centroids that cannot be those of the senders' samples.

    Raises:
        RefusedUpdateError: A centroid is too far off, a size is not positive, or the sizes are
            those of more samples than the client has.
    """
    check_near(update.centroids)
    if not bool((update.sizes > 0).all()):
        raise RefusedUpdateError("cluster sizes must be positive, one for each centroid")
    check_counts(update.sizes, senders)


@dataclass(frozen=True)
class InitState:
    """Base class of the states of a server that computes initial centroids from sums.

    Attributes:
        centroids: Global centroids of shape (at most k, d); None before the first ones.
        cells: During the start: the codebook's cells (``kmeans.start``).
        trials: While several starts are compared: the centroids of each (``kmeans.trials``).
        evidence: If k is chosen from the data: the evidence for each candidate.
    """

    centroids: Tensor | None = None
    cells: Tensor | None = None
    trials: Tensor | None = None
    evidence: Tensor | None = None


AnyInitState = TypeVar("AnyInitState", bound=InitState)


@dataclass(frozen=True)
class ClusterSums:
    """Sums of the members of each cluster.

    Attributes:
        sums: float64 of shape (k, d): the sum of each cluster's points.
        counts: float64 of shape (k,): number of each cluster's points.
    """

    sums: Tensor
    counts: Tensor

    @staticmethod
    def zeros(clusters: int, dimensions: int) -> "ClusterSums":
        """Return sums over no points."""
        sums = torch.zeros(clusters, dimensions, dtype=torch.float64)
        return ClusterSums(sums, sums[:, 0])


S = TypeVar("S", bound=ClusterSums)


def zero_small_clusters(total: S, least: int) -> S:
    """Return the sums with 0 for clusters of fewer than ``least`` points."""
    enough = total.counts >= least
    kept = {
        name: tensor * enough.view(-1, *[1] * (tensor.ndim - 1))
        for name, tensor in pack(total).items()
    }
    return unpack(type(total), kept)


PARTS: dict[str, Part] = {"sums": Sum(count="counts"), "counts": Count()}
"""The meaning of the parts of ``ClusterSums``."""


def sum_by_group(labels: Tensor, rows: Tensor, groups: int) -> Tensor:
    """Sum the rows of each label, float64 of shape (groups, d).

    A product with ones and zeros takes several times as long on a processor. On a GPU it is fast,
    and unlike an addition by index it gives the same bits each time.

    Args:
        labels: int64 of shape (samples,).
        rows: Tensor of shape (samples, d).
        groups: Number of labels.
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
        points: Tensor of shape (samples, d).
        labels: int64 of shape (samples,).
        clusters: Number of clusters k.
        exchange: The exchange in which they are sent.
        bounding: Bounds what each image adds; None: nothing is bounded.
        least: Fewest images in a sum that a client sends; smaller sums become 0.
    """
    enough = torch.bincount(labels, minlength=clusters) >= least
    summed = points if bounding is None else bounding.rows(exchange, "sums", points.double())
    sums = sum_by_group(labels, summed, clusters) * enough.unsqueeze(1)
    return ClusterSums(sums, cluster_counts(labels, clusters, exchange, bounding, least))


def cluster_counts(
    labels: Tensor, clusters: int, exchange: AnyExchange, bounding: Bounding | None, least: int
) -> Tensor:
    """Count each cluster's members, float64 of shape (k,); arguments as in ``cluster_sums``."""
    members = torch.bincount(labels, minlength=clusters).double()
    enough = members >= least
    if bounding is not None:
        ones = torch.ones(len(labels), 1, dtype=torch.float64, device=labels.device)
        members = sum_by_group(labels, bounding.rows(exchange, "counts", ones), clusters).flatten()
    return members * enough


class SumsWork(ServerWork[State, Message, S]):
    """Base class of the server's work with sums over each cluster's members."""

    def check(self, message: Message, update: S, senders: Sequence[Member]) -> None:
        """Refuse sums that cannot be those of the senders' images.

        Raises:
            RefusedUpdateError: A count is negative, the counts exceed the senders' images, or a
                mean is too far off.
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
        updates: At least one.
        empty: Mean of a cluster without members, of shape (k, d) or (d,).
        least: The smallest count that is not rounding or noise: 1 if members are counted.

    Returns:
        Tensor of shape (k, d), in the dtype and on the device of ``empty``.
    """
    total = sum_updates(updates)
    counts = total.counts.unsqueeze(1)
    means = (total.sums / counts.clamp(min=least)).to(empty)
    return torch.where(counts.to(empty.device) > 0, means, empty)
