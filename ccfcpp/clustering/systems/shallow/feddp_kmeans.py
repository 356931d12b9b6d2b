"""FedDP-KMeans: k-means from few sums over all clients, to which noise can be added.

Source: Scott, Lampert and Saulpic, *Differentially Private Federated k-Means Clustering with
Server-Side Data* (ICML 2025). Sums of outer products give the subspace of largest variance. In
this subspace, each of the server's points is weighted by the number of images nearest to it, and
weighted k-means of these points gives the initial centroids. Lloyd steps then move them.
docs/differences.md lists what differs from the paper.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import ClusterSums, SumsWork, check_products, cluster_means
from ccfcpp.clustering.kmeans.codebook import codebook_kmeans
from ccfcpp.clustering.systems.shallow.config import FedDPConfig
from ccfcpp.clustering.systems.shallow.feddp_sums import (
    LLOYD,
    MEAN,
    PRODUCTS,
    SEPARATED,
    WEIGHTS,
    AddClearMembers,
    AddMoments,
    Centres,
    CountNearest,
    Moments,
    ServerPoints,
    Weights,
)
from ccfcpp.clustering.systems.shallow.pixels import CentroidState, PixelClustering
from ccfcpp.clustering.systems.shallow.subspaces import (
    Frame,
    low_frequencies,
    top_subspace,
    unflatten_symmetric,
    whole_space,
)
from ccfcpp.core.config import DataConfig
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data.images import sample_indices
from ccfcpp.data.open import load
from ccfcpp.engine.algorithm import ClientContext
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    Exchange,
    Metrics,
    ServerWork,
)
from ccfcpp.engine.payload import check_counts, pack, sum_updates
from ccfcpp.engine.update_format import Spec, UpdateFormat, format_of

_FEWEST = 0.2
"""With noise, the centroid of a cluster stays if the cluster has fewer images than this share of
the clusters' mean."""


@dataclass(frozen=True)
class FedDPState:
    """State of the server of FedDP-KMeans.

    Attributes:
        frame: Coordinate system in which distances are computed: of the whole space, and once it
            is known, of the subspace of largest variance.
        given: The server's images as rows, float32 of shape (points, d); None if the server draws
            random points.
        points: The server's points in the frame, float64 of shape (points, r).
        coordinates: Centroids in the frame, float64 of shape (k, r); at first k of the points.
        centroids: Centroids in the space of pixels, float32 of shape (k, d); None before there are
            any.
        sums_in: Frame in which clients compute the next sums; None for ``frame``.
        moved: Largest change of a coordinate of a centroid in the last Lloyd step; None before.
    """

    frame: Frame
    points: Tensor
    coordinates: Tensor
    given: Tensor | None = None
    centroids: Tensor | None = None
    sums_in: Frame | None = None
    moved: float | None = None

    def with_centroids(
        self, frame: Frame, coordinates: Tensor, moved: float | None = None
    ) -> "FedDPState":
        """Return a copy of the state with new centroids, given by coordinates (k, r) in a frame."""
        centroids = frame.to_points(coordinates).float()
        return replace(self, frame=frame, coordinates=coordinates, centroids=centroids, moved=moved)


@dataclass(frozen=True)
class ComputeMean(ServerWork[FedDPState, Frame, Moments]):
    """Base class of the server side of a mean over all images x: of x, or of the products x xᵀ."""

    exchange: Exchange[Frame, Moments]

    def broadcast(self, state: FedDPState) -> Frame:
        """Return the message to clients: the coordinate system in which they compute sums."""
        return state.frame

    def update_format(self, message: Frame) -> UpdateFormat:
        """Return an update's shapes and dtypes, see ``Moments``."""
        size = len(message.axes)
        moments = size * (size + 1) // 2 if self.exchange is PRODUCTS else size
        return {"moments": Spec(torch.float64, (moments,)), "images": Spec(torch.float64)}

    def check(self, message: Frame, update: Moments, senders: Sequence[Member]) -> None:
        """Refuse a number of images that is larger than the senders', or moments beyond bounds."""
        check_counts(update.images, senders)
        check_products(update.moments, update.images)


@dataclass(frozen=True)
class MoveOrigin(ComputeMean):
    """Server side of the first exchange: moves the frame's origin to the mean of all images."""

    def aggregate(
        self, state: FedDPState, updates: Iterable[Moments], randomness: Randomness
    ) -> tuple[FedDPState, Metrics]:
        """Move the origin of ``state.frame`` to the mean of all images; without images it stays."""
        origin = state.frame.to_points(sum_updates(updates).mean)
        return replace(state, frame=replace(state.frame, origin=origin)), {}


@dataclass(frozen=True)
class FindSubspace(ComputeMean):
    """Server side of the second exchange: finds the subspace, and the server's points in it.

    Attributes:
        config: Gives the number of points, and the space of later sums.
        dimensions: Largest dimension of the subspace.
    """

    config: FedDPConfig
    dimensions: int

    def aggregate(
        self, state: FedDPState, updates: Iterable[Moments], randomness: Randomness
    ) -> tuple[FedDPState, Metrics]:
        """Set the frame to the subspace of largest variance, and the server's points in it."""
        before = state.frame
        covariance = unflatten_symmetric(sum_updates(updates).mean, len(before.axes))
        variances, axes = top_subspace(covariance, self.dimensions)
        frame = Frame(before.origin, axes @ before.axes)
        points = _server_points(self.config.points, state.given, frame, variances, randomness)
        sums_in = before if self.config.sums == "whole" else None
        coordinates = points[: len(state.coordinates)].clone()
        after = replace(state, frame=frame, points=points, sums_in=sums_in, coordinates=coordinates)
        return after, {"dimensions": float(len(axes))}


def _server_points(
    number: int, given: Tensor | None, frame: Frame, variances: Tensor, randomness: Randomness
) -> Tensor:
    """Return the coordinates of the server's points in a frame, float64 of shape (points, r).

    The points are its images ``given``; if None, ``number`` normal draws with ``variances`` (r,).
    """
    if given is not None:
        return frame.coordinates(given)
    generator = randomness.generator("server's points")
    drawn = torch.randn(number, len(variances), generator=generator, dtype=torch.float64)
    return drawn.to(variances) * variances.sqrt()


@dataclass(frozen=True)
class WeighPoints(ServerWork[FedDPState, ServerPoints, Weights]):
    """Server side of the initial centroids: weighted k-means of the server's points."""

    clusters: int
    exchange = WEIGHTS

    def broadcast(self, state: FedDPState) -> ServerPoints:
        """Return the message to clients: the server's points."""
        return ServerPoints(state.frame, state.points)

    def update_format(self, message: ServerPoints) -> UpdateFormat:
        """Return an update's shapes and dtypes: a count for each point."""
        return {"counts": Spec(torch.float64, (len(message.points),))}

    def check(self, message: ServerPoints, update: Weights, senders: Sequence[Member]) -> None:
        """Refuse counts larger than the senders' number of images."""
        check_counts(update.counts, senders)

    def project_noisy(self, message: ServerPoints, update: Weights) -> Weights:
        """Set counts that noise made negative to 0."""
        return Weights(update.counts.clamp(min=0))

    def aggregate(
        self, state: FedDPState, updates: Iterable[Weights], randomness: Randomness
    ) -> tuple[FedDPState, Metrics]:
        """Set the centroids: k-means on the server's points, weighted by image counts."""
        points, weights = state.points, sum_updates(updates).counts
        # Points without images get a tiny weight, so that there are enough for all clusters.
        weights = weights + 1e-9 * weights.sum().clamp(min=1)
        seed = randomness.integer("k-means")
        with section("k-means: server"):
            centroids = codebook_kmeans(points, weights, self.clusters, seed)
        return state.with_centroids(state.frame, centroids), {}


@dataclass(frozen=True)
class MoveFedDPCentroids(SumsWork[FedDPState, Centres, ClusterSums]):
    """Server side of a Lloyd step: moves each centroid to the mean of its cluster's images.

    ``margin`` limits which images count, see ``Centres``.
    """

    exchange: Exchange[Centres, ClusterSums]
    margin: float = 1.0

    def broadcast(self, state: FedDPState) -> Centres:
        """Return the message to clients: the centroids."""
        return Centres(state.frame, state.coordinates, self.margin, state.sums_in)

    def update_format(self, message: Centres) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum and a count for each centroid."""
        frame = message.sums_in or message.frame
        return format_of(pack(ClusterSums.zeros(len(message.coordinates), len(frame.axes))))

    def project_noisy(self, message: Centres, update: ClusterSums) -> ClusterSums:
        """Set the sums of clusters with under a fifth of the mean number of images to 0."""
        kept = (update.counts > _FEWEST * update.counts.clamp(min=0).mean()).double()
        return ClusterSums(update.sums * kept.unsqueeze(1), update.counts * kept)

    def aggregate(
        self, state: FedDPState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[FedDPState, Metrics]:
        """Move each centroid to the mean of its images, unless it has none; report how far."""
        before, frame = state.coordinates, state.frame
        if state.sums_in is not None:
            before, frame = state.sums_in.coordinates(frame.to_points(before)), state.sums_in
        after = cluster_means(updates, before, least=torch.finfo(torch.float64).tiny)
        moved = float((after - before).abs().max())
        # Where a margin leaves images out, a centroid that stays may still move in a Lloyd step.
        known = None if self.exchange is SEPARATED else moved
        return replace(state, sums_in=None).with_centroids(frame, after, known), {"moved": moved}


class FedDPKMeans(PixelClustering[FedDPState]):
    """FedDP-KMeans: k-means from sums over all clients, made for differential privacy.

    Raises:
        UsageError: ``feddp.points`` or ``feddp.frequencies`` is too small.
    """

    state_type = FedDPState

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.config = problem.config.section(FedDPConfig)
        self.rounds = self.config.rounds
        if self.config.points < problem.clusters:
            raise UsageError(
                KeyValue("feddp.points", self.config.points),
                f" is fewer than the {problem.clusters} clusters: give at least {problem.clusters}",
            )
        most, (channels, *sides) = self.config.frequencies, problem.image_shape
        if most is not None and channels == 1 and all(min(side, most) == 1 for side in sides):
            raise UsageError(
                f"feddp.frequencies = {most} leaves nothing of grey images of "
                f"{'x'.join(map(str, sides))} pixels but their brightness, which does not count: "
                "give at least 2, or larger images"
            )

    @property
    def final_model_type(self) -> type[object]:
        """Type of the final model, with which clients assign images to clusters."""
        return CentroidState

    def has_converged(self, state: FedDPState) -> bool:
        """Return whether no centroid moved in the last round; False if clients may be absent."""
        return self.is_settled(state.moved, 0)

    def initial_state(self, randomness: Randomness) -> FedDPState:
        """Return the state before the first round, with the server's points in the whole space.

        Raises:
            UsageError: The server's images cannot be read, are too few, or have another shape.
        """
        most, device = self.config.frequencies, self.problem.device
        if most is None:
            frame = whole_space(self.rule.dimensions)
        else:
            frame = low_frequencies(self.problem.image_shape, most)
        frame = Frame(frame.origin.to(device), frame.axes.to(device))
        given, axes = self._server_images(randomness), len(frame.axes)
        # Images of length 1 with the same variance along all axes have this variance.
        variances = torch.full((axes,), 1 / axes, dtype=torch.float64, device=device)
        points = _server_points(self.config.points, given, frame, variances, randomness)
        return FedDPState(frame, points, points[: self.problem.clusters].clone(), given=given)

    def _server_images(self, randomness: Randomness) -> Tensor | None:
        """Read up to ``feddp.points`` images of the server: float32 (points, d), or None."""
        source = self.config.server
        if source is None:
            return None
        data, shape = self.problem.config.section(DataConfig), self.problem.image_shape
        root = Path(data.root) if data.root else None
        side = shape[1] if shape[1] == shape[2] else None  # Others cannot be resized.
        images = load(source, data_root=root, image_size=side).images
        if images.shape[1:] != shape or len(images) < self.problem.clusters:
            raise UsageError(
                f"feddp.server = {source} has {len(images)} images of shape "
                f"{tuple(images.shape[1:])}: give at least {self.problem.clusters} of shape "
                f"{tuple(shape)}"
            )
        generator = randomness.generator("server's images")
        chosen = sample_indices(torch.arange(len(images)), self.config.points, generator)
        return self.rule.points(images[chosen].to(self.problem.device))

    def exchanges(self, number: int, state: FedDPState) -> Sequence[AnyServerWork]:
        """Return a Lloyd step, or the initialisation if there are no centroids."""
        return self._start() if state.centroids is None else [MoveFedDPCentroids(LLOYD)]

    def plan(self, state: FedDPState) -> list[Sequence[AnyServerWork]]:
        """Return the exchanges of every round of a run without failures."""
        return [self._start(), *[[MoveFedDPCentroids(LLOYD)]] * (self.rounds - 1)]

    def _start(self) -> Sequence[AnyServerWork]:
        clusters, margin = self.problem.clusters, self.config.margin
        return [
            MoveOrigin(MEAN),
            FindSubspace(PRODUCTS, self.config, self.config.dimensions or clusters),
            WeighPoints(clusters),
            *([] if margin is None else [MoveFedDPCentroids(SEPARATED, margin)]),
        ]

    def client_side(self, context: ClientContext) -> ClientSide:
        """Return the client side of all exchanges."""
        return ClientSide.of(
            AddMoments(MEAN, context, self.rule),
            AddMoments(PRODUCTS, context, self.rule),
            CountNearest(WEIGHTS, context, self.rule),
            AddClearMembers(SEPARATED, context, self.rule),
            AddClearMembers(LLOYD, context, self.rule),
        )
