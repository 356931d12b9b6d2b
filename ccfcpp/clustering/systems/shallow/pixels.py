"""Images as points in the space of pixels, for the systems without a neural network."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import (
    ClusteringAlgorithm,
    ClusteringState,
    Problem,
    describe_chosen_number,
)
from ccfcpp.clustering.kmeans.centroids import AnyInitState, InitState, required_centroids
from ccfcpp.clustering.kmeans.chunks import blocks
from ccfcpp.clustering.kmeans.initialisation import init_works
from ccfcpp.clustering.kmeans.server import most_similar, nearest
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.data.images import to_float
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import AnyServerWork

IMAGES_AT_A_TIME = 4096
"""Number of images that are converted to floats at once."""


@dataclass(frozen=True)
class CentroidState(InitState):
    """State of the server of a system without a neural network: the centroids.

    Attributes:
        moved: Largest change of a coordinate of a centroid in the last round; None before the
            second round.
    """

    moved: float | None = None


@dataclass(frozen=True)
class PixelRule:
    """Rule by which images become points (vectors of pixels), and points get centroids."""

    config: PixelsConfig
    image_shape: tuple[int, ...]

    @staticmethod
    def of(problem: Problem) -> "PixelRule":
        """Return the rule that a problem's configuration sets (section ``pixels``)."""
        return PixelRule(problem.config.section(PixelsConfig), problem.image_shape)

    @property
    def dimensions(self) -> int:
        """Number of dimensions of a point: the pixels of all channels, or a vector's elements."""
        return prod(self.image_shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which points are sent: float64 for vectors, which may be far from 0."""
        return torch.float64 if len(self.image_shape) == 1 else torch.float32

    @property
    def by_angle(self) -> bool:
        """Whether images are assigned by cosine similarity."""
        return self.config.assignment == "cosine"

    def points(self, images: Tensor) -> Tensor:
        """Map images to points: pixels scaled to [0, 1], and if configured each point to length 1.

        Args:
            images: uint8 of shape (samples, channels, height, width), or vectors (samples, d).

        Returns:
            float32 of shape (samples, pixels); for vectors (samples, d), of the same dtype.
        """
        pixels = images if images.is_floating_point() else to_float(images).flatten(1)
        return F.normalize(pixels, dim=1) if self.config.normalise else pixels

    def blocks(self, images: Tensor, width: int) -> Iterable[Tensor]:
        """Yield points in blocks that fit memory; ``width``: how many numbers a point needs."""
        return map(self.points, blocks(images, width))

    def assign(self, images: Tensor, centroids: Tensor) -> Tensor:
        """Return the index of the centroid to which each image is assigned, int64 (samples,)."""
        rule = most_similar if self.by_angle else nearest
        parts = torch.split(images, IMAGES_AT_A_TIME)
        return torch.cat([rule(self.points(part), centroids) for part in parts])


Known = TypeVar("Known", bound=ClusteringState)


class PixelClustering(ClusteringAlgorithm[Known]):
    """Base class of systems whose centroids are points in the space of pixels."""

    by_pixels = True

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.rule = PixelRule.of(problem)
        self.by_angle = self.rule.by_angle

    def is_settled(self, change: float | None, tolerance: float) -> bool:
        """Return whether ``change``, that of the last round, is no more than the tolerance.

        False if ``change`` is None (unknown), or if clients may be absent: the next round may have
        other clients.
        """
        varies = self.problem.config.availability.varies
        return change is not None and change <= tolerance and not varies

    def assign(self, state: Known, client: Client) -> Tensor:
        """Return the index of the centroid to which each image is assigned, int64 (samples,)."""
        return self.rule.assign(client.images, required_centroids(state.centroids))

    def represent(self, state: Known, client: Client) -> Tensor | None:
        """Return a client's points, of shape (samples, pixels); None before there are centroids."""
        return None if state.centroids is None else self.rule.points(client.images)

    def final_model(self, state: Known) -> object:
        """Return the global centroids, which clients need to assign images."""
        return CentroidState(state.centroids)


class InitBySums(PixelClustering[AnyInitState]):
    """Base class of systems whose first round computes initial centroids from sums.

    Later rounds have the system's own steps. If too few clients answered in the first round, the
    next one repeats it.
    """

    starts = 1
    """Number of initialisations, of which the one with the least squared error is used."""

    @abstractmethod
    def steps(self, number: int) -> Sequence[AnyServerWork]:
        """Return the exchanges of a round once there are centroids."""

    def exchanges(self, number: int, state: AnyInitState) -> Sequence[AnyServerWork]:
        """Return the steps of a round, or the initialisation if there are no centroids."""
        return self.start() if state.centroids is None else self.steps(number)

    def plan(self, state: AnyInitState) -> list[Sequence[AnyServerWork]]:
        """Return the exchanges of every round of a run without failures, and with enough points."""
        if state.centroids is not None:
            return [self.steps(number) for number in range(self.rounds)]
        # Without those exchanges that run only with few points.
        usual = [work for work in self.start() if not getattr(work, "again", False)]
        return [usual, *map(self.steps, range(1, self.rounds))]

    def start(self) -> Sequence[AnyServerWork]:
        """Return the exchanges that compute initial centroids."""
        return init_works(self.problem, self.rule.dimensions, self.starts)

    def summarize(self, state: AnyInitState) -> dict[str, object]:
        """Return the chosen number of clusters, and the evidence for it; nothing if k was given."""
        evidence, centroids = state.evidence, state.centroids
        if evidence is None or centroids is None:
            return {}
        if not bool(evidence.any()):  # All samples are alike.
            return {"clusters": len(centroids)}
        return describe_chosen_number(evidence, self.problem.fewest, len(centroids))
