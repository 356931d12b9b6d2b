"""Confidence in each image's cluster: its probability, its distance and its outlier factor."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import ClusteringAlgorithm
from ccfcpp.clustering.mahalanobis import SampleDistribution
from ccfcpp.core.metrics import distances_to_centroids
from ccfcpp.engine.client import Client

_AT_A_TIME = 1 << 16

_MEASURES = ("probability", "distance", "outlier")
"""Measures of an image, in the order of a table's columns."""


@dataclass(frozen=True)
class NumberColumn:
    """Table column that yields a 1-d tensor's elements as Python numbers, floats to six digits.

    Elements are converted while they are read, to save memory.
    """

    values: Tensor

    def __iter__(self) -> Iterator[float]:
        for block in torch.split(self.values, _AT_A_TIME):
            for number in block.tolist():
                yield float(f"{number:.6g}") if isinstance(number, float) else number


def table_columns(tensors: Mapping[str, Tensor]) -> dict[str, Iterable[object]]:
    """Return named tensors of shape (samples,) as columns of a table."""
    return {name: NumberColumn(values) for name, values in tensors.items()}


def scale_for_distances(points: Tensor, by_angle: bool) -> Tensor:
    """Normalise points (samples, d) to unit length if ``by_angle``; else return them unchanged."""
    return F.normalize(points.double(), dim=1) if by_angle else points


def confidence(
    algorithm: ClusteringAlgorithm[Any],
    known: Any,
    client: Client,
    clusters: Tensor,
    typical: SampleDistribution | None = None,
) -> dict[str, Tensor]:
    """Return measures of confidence in the clusters of a client's images.

    Args:
        algorithm: The clustering system.
        known: The server's state or the final model.
        client: The client whose images are assigned.
        clusters: The cluster of each image, int64 of shape (samples,).
        typical: Distribution of the run's images, if it is known.

    Returns:
        Floats of shape (samples,) on the CPU, each only if it is known: ``probability`` of the
        cluster, by the system or else by ``SampleDistribution.probabilities``; ``distance`` to the
        cluster's centre, Euclidean or in degrees; and ``outlier``, the Mahalanobis distance to the
        cluster's mean, where 1 is usual (``SampleDistribution.distances``).
    """
    measures = dict[str, Tensor]()
    probabilities = algorithm.probabilities(known, client)
    centres = algorithm.centres(known) if hasattr(known, "centroids") else None
    needs_points = centres is not None or typical is not None
    points = algorithm.represent(known, client) if needs_points else None
    if points is not None:
        own = clusters.to(points.device)
        if centres is not None:
            to_centre = distances_to_centroids(
                points, own, centres.to(points.device), algorithm.by_angle
            )
            measures["distance"] = to_centre.to(points.dtype)
        if typical is not None:
            scaled = scale_for_distances(points, algorithm.by_angle)
            measures["outlier"] = typical.distances(scaled, own)
            if probabilities is None:
                probabilities = typical.probabilities(scaled)
    if probabilities is not None:
        own = clusters.to(probabilities.device)
        measures["probability"] = probabilities.gather(1, own[:, None]).squeeze(1)
    return {name: measures[name].cpu() for name in _MEASURES if name in measures}
