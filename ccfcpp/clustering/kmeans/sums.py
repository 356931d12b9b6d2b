"""Sums over the members of each cluster, of which a server makes means."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.engine.exchange import AnyExchange
from ccfcpp.engine.parts import Count, Part, Sum
from ccfcpp.engine.payload import added_up
from ccfcpp.engine.synchronised.contract import Bounding


@dataclass(frozen=True)
class ClusterSums:
    """Sums of the members of each cluster.

    Attributes:
        sums: float64 of shape (k, d): the sum of each cluster's points.
        counts: float64 of shape (k,): how many they are.
    """

    sums: Tensor
    counts: Tensor

    @staticmethod
    def zeros(clusters: int, dimensions: int) -> "ClusterSums":
        """Sums over nothing."""
        sums = torch.zeros(clusters, dimensions, dtype=torch.float64)
        return ClusterSums(sums, sums[:, 0])


PARTS: dict[str, Part] = {"sums": Sum(count="counts"), "counts": Count()}
"""What the parts of ``ClusterSums`` mean."""


def cluster_sums(
    points: Tensor,
    labels: Tensor,
    clusters: int,
    exchange: AnyExchange,
    bounding: Bounding | None,
    least: int,
) -> ClusterSums:
    """Sum and number of each cluster's points.

    Args:
        points: Of shape (samples, d).
        labels: int64 of shape (samples,).
        clusters: Number of clusters k.
        exchange: In which they are sent.
        bounding: Bounds what each image adds; None: nothing is bounded.
        least: The fewest images over which a client sends a sum.
    """
    members = F.one_hot(labels, clusters).double()
    members = members * (members.sum(dim=0) >= least)
    summed = points.double()
    if bounding is not None:
        summed = bounding.rows(exchange, "sums", summed)
    return ClusterSums(members.T @ summed, cluster_counts(members, exchange, bounding))


def cluster_counts(members: Tensor, exchange: AnyExchange, bounding: Bounding | None) -> Tensor:
    """Number of each cluster's members, float64 of shape (k,), from ones of shape (samples, k)."""
    rows = members.double()
    return (rows if bounding is None else bounding.rows(exchange, "counts", rows)).sum(dim=0)


def cluster_means(updates: Iterable[ClusterSums], empty: Tensor) -> Tensor:
    """The mean of each cluster's points over all clients.

    Args:
        updates: At least one.
        empty: What stands for a cluster without members, of shape (k, d) or (d,).

    Returns:
        Tensor of shape (k, d), in the dtype and on the device of ``empty``.
    """
    total = added_up(updates)
    counts = total.counts.unsqueeze(1)
    means = (total.sums / counts.clamp(min=1)).to(empty)
    return torch.where(counts.to(empty.device) > 0, means, empty)
