"""Confidence in the assignment of images to clusters, if a system provides it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.mahalanobis import SampleDistribution
from ccfcpp.core.metrics import distances
from ccfcpp.engine.client import Client

_AT_A_TIME = 1 << 16

_TOLD = ("probability", "distance", "outlier")
"""Measures of an image, in the order of a table's columns."""


@dataclass(frozen=True)
class NumberColumn:
    """A tensor of shape (samples,) as a column of a table: Python's numbers, floats of six digits.

    Numbers are made one by one as they are read, since those of many samples would fill the memory.
    """

    values: Tensor

    def __iter__(self) -> Iterator[float]:
        for part in torch.split(self.values, _AT_A_TIME):
            for number in part.tolist():
                yield float(f"{number:.6g}") if isinstance(number, float) else number


def table_columns(found: Mapping[str, Tensor]) -> dict[str, Iterable[object]]:
    """Return tensors of shape (samples,) as columns of a table."""
    return {name: NumberColumn(own) for name, own in found.items()}


def scale_for_distances(points: Tensor, by_angle: bool) -> Tensor:
    """Scale points (samples, d) to unit length if the system assigns by cosine similarity."""
    return F.normalize(points.double(), dim=1) if by_angle else points


def confidence(
    algorithm: ClusteringAlgorithm[Any],
    known: Any,
    client: Client,
    clusters: Tensor,
    typical: SampleDistribution | None = None,
) -> dict[str, Tensor]:
    """Return how confident a system is in the clusters of a client's images.

    Args:
        algorithm: The system.
        known: The server's state, or what clients receive after the run.
        client: The client whose images are assigned.
        clusters: The cluster of each image, int64 of shape (samples,).
        typical: Distribution of the run's images, if it is known.

    Returns:
        Floats of shape (samples,) on the CPU, each only if it is known: ``probability`` of the
        cluster, by the system or else by ``SampleDistribution.probabilities``; ``distance`` to the
        cluster's centre, Euclidean or in degrees; and ``outlier``, the Mahalanobis distance to the
        cluster's mean, where 1 is usual (``SampleDistribution.distances``).
    """
    found = dict[str, Tensor]()
    probabilities = algorithm.probabilities(known, client)
    centres = algorithm.centres(known) if hasattr(known, "centroids") else None
    asked = centres is not None or typical is not None
    points = algorithm.represent(known, client) if asked else None
    if points is not None:
        own = clusters.to(points.device)
        if centres is not None:
            apart = distances(points, own, centres.to(points.device), algorithm.by_angle)
            found["distance"] = apart.to(points.dtype)
        if typical is not None:
            where = scale_for_distances(points, algorithm.by_angle)
            found["outlier"] = typical.distances(where, own)
            if probabilities is None:
                probabilities = typical.probabilities(where)
    if probabilities is not None:
        own = clusters.to(probabilities.device)
        found["probability"] = probabilities.gather(1, own[:, None]).squeeze(1)
    return {name: found[name].cpu() for name in _TOLD if name in found}
