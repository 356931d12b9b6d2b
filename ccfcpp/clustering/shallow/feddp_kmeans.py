"""FedDP-KMeans: k-means by few sums, to which noise can be added.

Source: Scott, Lampert and Saulpic, *Differentially Private Federated k-Means Clustering with
Server-Side Data* (ICML 2025). Sums of outer products give the subspace of most variance. There,
counts of the images nearest to each of the server's points weigh these points, whose weighted
k-means gives the first centroids. Then sums of the images of each cluster move them. docs/
differences.md lists what is ours.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.config import ClusterDataConfig
from ccfcpp.clustering.kmeans.centroids import ClusterSums, required_centroids
from ccfcpp.clustering.shallow.config import FedDPConfig
from ccfcpp.clustering.shallow.feddp_sums import (
    CONSTANT,
    LLOYD,
    PRODUCTS,
    SEPARATED,
    TOTALS,
    WEIGHTS,
    AddImages,
    AddMembers,
    AddProducts,
    Centres,
    Compared,
    CountNearest,
    Products,
    Totals,
    Weights,
)
from ccfcpp.clustering.shallow.frames import (
    Frame,
    from_half,
    low_frequencies,
    top_subspace,
    whole_space,
)
from ccfcpp.clustering.shallow.pixels import CentroidState, PixelClustering
from ccfcpp.core.errors import UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.data import load
from ccfcpp.data.images import random_part
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import (
    AnyServerWork,
    ClientSide,
    Exchange,
    Figures,
    RefusedUpdateError,
    ServerWork,
)
from ccfcpp.engine.parts import Form, Spec, form_of
from ccfcpp.engine.payload import added_up, pack

_RESTARTS = 10
_FEWEST = 0.2
"""With noise, a cluster with a smaller part of the mean number of images stays where it is."""


@dataclass(frozen=True)
class FedDPState:
    """What the server knows.

    Attributes:
        frame: Where images are compared: the whole space, and from the outer products on the
            subspace.
        images: Number of images of the clients that have taken part; with noise about that, or
            about the number of clients where all count alike.
        given: The server's images as rows, float32 of shape (points, d); None: points are drawn.
        points: The server's points in the frame, float64 of shape (points, r).
        coordinates: Centroids in the frame, float64 of shape (at most k, r).
        centroids: Centroids in the space of pixels, float32 of shape (at most k, d).
        sums_in: The frame of the next sums; None: ``frame``.
        moved: The furthest that a coordinate of a centroid moved in the last round.
    """

    frame: Frame
    images: float = 0.0
    given: Tensor | None = None
    points: Tensor | None = None
    coordinates: Tensor | None = None
    centroids: Tensor | None = None
    sums_in: Frame | None = None
    moved: float | None = None

    def at(self, frame: Frame, coordinates: Tensor, moved: float | None = None) -> "FedDPState":
        """The same with other centroids, in a frame that is that of all further sums."""
        centroids = frame.places(coordinates).float()
        found = replace(self, frame=frame, coordinates=coordinates, centroids=centroids)
        return replace(found, moved=moved)


@dataclass(frozen=True)
class MeasureTotals(ServerWork[FedDPState, Frame, Totals]):
    """The mean of all images becomes the origin."""

    longest: float
    exchange: Exchange[Frame, Totals] = TOTALS

    def broadcast(self, state: FedDPState) -> Frame:
        """Where to measure."""
        return state.frame

    def form(self, message: Frame) -> Form:
        """A coordinate for each axis, and one more."""
        return {"totals": Spec(torch.float64, (len(message.axes) + 1,))}

    def check(self, message: Frame, update: Totals, senders: Sequence[Member]) -> None:
        """Refuse a number of images that no client, or not these clients, can have."""
        held = sum(sender.samples for sender in senders)
        if not 0 <= float(update.totals[-1]) <= CONSTANT * held * (1 + 1e-6):
            raise RefusedUpdateError(f"it adds up more images than the {held} of the client")

    def mended(self, message: Frame, update: Totals) -> Totals:
        """No mean is longer than the longest image."""
        sums, number = update.totals[:-1], update.totals[-1:]
        least = CONSTANT * sums.norm() / self.longest
        return Totals(torch.cat([sums, number.clamp(min=float(least))]))

    def aggregate(
        self, state: FedDPState, updates: Iterable[Totals], randomness: Randomness
    ) -> tuple[FedDPState, Figures]:
        """Move the origin; where no image was added up, it stays."""
        total = added_up(updates).totals
        images = float(total[-1]) / CONSTANT
        mean = state.frame.places(total[:-1] / max(images, 1e-300))
        return replace(state, frame=Frame(mean, state.frame.axes), images=images), {}


@dataclass(frozen=True)
class MeasureProducts(ServerWork[FedDPState, Frame, Products]):
    """The subspace of most variance, and the server's points in it."""

    config: FedDPConfig
    dimensions: int
    exchange: Exchange[Frame, Products] = PRODUCTS

    def broadcast(self, state: FedDPState) -> Frame:
        """Where to measure."""
        return state.frame

    def form(self, message: Frame) -> Form:
        """Half a matrix."""
        size = len(message.axes)
        return {"products": Spec(torch.float64, (size * (size + 1) // 2,))}

    def aggregate(
        self, state: FedDPState, updates: Iterable[Products], randomness: Randomness
    ) -> tuple[FedDPState, Figures]:
        """Take the subspace; project the server's images on it, or draw points of its variances."""
        before = state.frame
        covariance = from_half(added_up(updates).products, len(before.axes))
        variances, axes = top_subspace(covariance / max(state.images, 1e-300), self.dimensions)
        frame = Frame(before.origin, axes @ before.axes)
        if state.given is None:
            generator = randomness.generator("server's points")
            drawn = torch.randn(self.config.points, len(axes), generator=generator).to(variances)
            points = drawn * variances.sqrt()
        else:
            points = frame.coordinates(state.given)
        sums_in = before if self.config.sums == "whole" else None
        found = replace(state, frame=frame, points=points, sums_in=sums_in)
        return found, {"dimensions": float(len(axes))}


@dataclass(frozen=True)
class WeighPoints(ServerWork[FedDPState, Compared, Weights]):
    """The first centroids: a k-means of the server's points, weighted by images."""

    clusters: int
    exchange: Exchange[Compared, Weights] = WEIGHTS

    def broadcast(self, state: FedDPState) -> Compared:
        """The server's points."""
        return Compared(state.frame, required_centroids(state.points))

    def form(self, message: Compared) -> Form:
        """A count for each point."""
        return {"counts": Spec(torch.float64, (len(message.points),))}

    def check(self, message: Compared, update: Weights, senders: Sequence[Member]) -> None:
        """Refuse counts of images that are not there."""
        held = sum(sender.samples for sender in senders)
        if bool((update.counts < 0).any()) or float(update.counts.sum()) > held * (1 + 1e-6):
            raise RefusedUpdateError(f"its counts are not those of the client's {held} images")

    def mended(self, message: Compared, update: Weights) -> Weights:
        """No count is negative."""
        return Weights(update.counts.clamp(min=0))

    def aggregate(
        self, state: FedDPState, updates: Iterable[Weights], randomness: Randomness
    ) -> tuple[FedDPState, Figures]:
        """Run weighted k-means."""
        # Imported where it is needed, since scikit-learn takes most of a second.
        from sklearn.cluster import KMeans

        points, weights = required_centroids(state.points), added_up(updates).counts
        # What no image is near counts almost nothing, so that there are points for all clusters.
        weights = weights + 1e-9 * weights.sum().clamp(min=1)
        seed = randomness.integer("k-means") % 2**32
        with section("k-means: server"):
            found = KMeans(self.clusters, n_init=_RESTARTS, random_state=seed)
            found.fit(points.cpu().numpy(), sample_weight=weights.cpu().numpy())
        return state.at(state.frame, torch.from_numpy(found.cluster_centers_).to(points)), {}


@dataclass(frozen=True)
class MoveCentroids(ServerWork[FedDPState, Centres, ClusterSums]):
    """Each centroid becomes the mean of its members."""

    exchange: Exchange[Centres, ClusterSums]
    margin: float = 1.0

    def broadcast(self, state: FedDPState) -> Centres:
        """The centroids."""
        coordinates = required_centroids(state.coordinates)
        return Centres(state.frame, coordinates, self.margin, state.sums_in)

    def form(self, message: Centres) -> Form:
        """A sum and a number for each centroid."""
        frame = message.sums_in or message.frame
        return form_of(pack(ClusterSums.zeros(len(message.coordinates), len(frame.axes))))

    def mended(self, message: Centres, update: ClusterSums) -> ClusterSums:
        """A mean over hardly any images is noise: such a cluster has no members."""
        kept = (update.counts > _FEWEST * update.counts.clamp(min=0).mean()).double()
        return ClusterSums(update.sums * kept.unsqueeze(1), update.counts * kept)

    def aggregate(
        self, state: FedDPState, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[FedDPState, Figures]:
        """A centroid without members stays as it is."""
        before, frame = required_centroids(state.coordinates), state.frame
        if state.sums_in is not None:
            before, frame = state.sums_in.coordinates(frame.places(before)), state.sums_in
        total = added_up(updates)
        counts = total.counts.unsqueeze(1)
        means = total.sums / torch.where(counts > 0, counts, 1)
        after = torch.where(counts > 0, means, before)
        moved = float((after - before).abs().max())
        return replace(state, sums_in=None).at(frame, after, moved), {"moved": moved}


class FedDPKMeans(PixelClustering[FedDPState]):
    """FedDP-KMeans."""

    state_type = FedDPState

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.config = problem.config.section(FedDPConfig)
        self.rounds = self.config.rounds
        if self.config.points < problem.clusters:
            raise UsageError(
                f"feddp.points = {self.config.points} is fewer than the {problem.clusters} "
                f"clusters: give at least {problem.clusters}"
            )

    @property
    def delivery_type(self) -> type[object]:
        """Centroids."""
        return CentroidState

    def has_converged(self, state: FedDPState) -> bool:
        """Whether no centroid has moved. Other clients may still move them."""
        return state.moved == 0 and not self.problem.config.availability.varies

    def initial_state(self, randomness: Randomness) -> FedDPState:
        """The space in which images are measured, and the server's images.

        Raises:
            UsageError: They cannot be read, or do not fit.
        """
        most, device = self.config.frequencies, self.problem.device
        if most is None:
            frame = whole_space(self.rule.dimensions)
        else:
            frame = low_frequencies(self.problem.image_shape, most)
        frame = Frame(frame.origin.to(device), frame.axes.to(device))
        return FedDPState(frame, given=self._given(randomness))

    def _given(self, randomness: Randomness) -> Tensor | None:
        """The server's images as rows, of which no label is used."""
        source = self.config.server
        if source is None:
            return None
        data, shape = self.problem.config.section(ClusterDataConfig), self.problem.image_shape
        root = Path(data.root) if data.root else None
        images = load(source, data_root=root, image_size=_side(shape)).images
        if images.shape[1:] != shape or len(images) < self.problem.clusters:
            raise UsageError(
                f"feddp.server = {source} has {len(images)} images of shape "
                f"{tuple(images.shape[1:])}: give at least {self.problem.clusters} of shape "
                f"{tuple(shape)}"
            )
        generator = randomness.generator("server's images")
        chosen = random_part(torch.arange(len(images)), self.config.points, generator)
        return self.rule.points(images[chosen].to(self.problem.device))

    def exchanges(self, number: int, state: FedDPState) -> Sequence[AnyServerWork]:
        """Centroids to start from, then a Lloyd step in each round."""
        if number > 0:
            return [MoveCentroids(LLOYD)]
        clusters, margin = self.problem.clusters, self.config.margin
        longest = 1.0 if self.rule.config.normalise else self.rule.dimensions**0.5
        return [
            MeasureTotals(longest),
            MeasureProducts(self.config, self.config.dimensions or clusters),
            WeighPoints(clusters),
            *([] if margin is None else [MoveCentroids(SEPARATED, margin)]),
        ]

    def client_side(self, crew: Crew) -> ClientSide:
        """All sums."""
        return ClientSide.of(
            AddImages(TOTALS, self.rule, crew),
            AddProducts(PRODUCTS, self.rule, crew),
            CountNearest(WEIGHTS, self.rule, crew),
            AddMembers(SEPARATED, self.rule, crew),
            AddMembers(LLOYD, self.rule, crew),
        )


def _side(shape: Sequence[int]) -> int | None:
    """Height and width of square images; None of others, which are not resized."""
    return shape[1] if shape[1] == shape[2] else None
