"""How clients learn the transform together: three kinds of sums, none of them of one image.

Each client takes every n-th of its images, so that all clients together take about 12,000. The
result is that of these images in one place. First the covariance of patches gives W. Then Lloyd's
steps among whitened patches move random directions to the atoms. Then co-occurrences give the
embedding: with a code α of a patch and s = Σα of an image, B = Σ ααᵀ over patches and C = Σ ssᵀ
over images, it is the rows of B^(−1/2) U. U holds the leading eigenvectors of B^(−1/2) C B^(−1/2)
but the first, which is about how many atoms there are.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ccfcpp.clustering.algorithm import Problem
from ccfcpp.clustering.kmeans.centroids import PARTS, ClusterSums, cluster_means, sums_by
from ccfcpp.clustering.lessons import Lesson, Stage, learnt
from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.clustering.scan.neighbours import DESCRIBE
from ccfcpp.clustering.transform.features import (
    DIMENSIONS,
    PATCH,
    Transform,
    batches,
    codes,
    features,
    patches,
    whitened,
)
from ccfcpp.core.errors import UsageError
from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.algorithm import Crew
from ccfcpp.engine.client import Client, Member
from ccfcpp.engine.exchange import AnyExchange, Exchange, RefusedUpdateError, SummedWork, Task
from ccfcpp.engine.lanes import mapped
from ccfcpp.engine.parts import Count, Part, Sum
from ccfcpp.engine.payload import added_up, pack, unpack

_IMAGES = 12_000
"""From which sums are made, of all clients together; more make neighbours hardly purer."""
_STEPS = 10
"""Of Lloyd's algorithm."""
_FOR_ATOMS, _FOR_PAIRS = 40, 90
"""About so many patches of an image are enough for them, since neighbours are nearly equal."""
_SMALLEST = PATCH + 2
"""Pixels a side of the smallest images."""
_REGULAR = 1e-3
"""Added to the variances of patches before whitening."""
_LEAST_EIGENVALUE = 1e-6
"""Of B, as a share of the largest; what is below may be rounding."""


@dataclass(frozen=True)
class Spread:
    """Outer products of patches.

    Attributes:
        outer: float64 of shape (p, p).
        counts: How many patches, float64 of shape (1,).
    """

    outer: Tensor
    counts: Tensor


@dataclass(frozen=True)
class Together:
    """Which atoms occur together: upper triangles, float64 of shape (atoms · (atoms + 1) / 2,).

    Attributes:
        patches: Of B.
        images: Of C.
    """

    patches: Tensor
    images: Tensor


@dataclass(frozen=True)
class AtomSums(ClusterSums):
    """What a client adds up of its patches by the atom that they are nearest to.

    Attributes:
        images: How many images have such a patch, float64 of shape (atoms,); it stays there.
    """

    images: Tensor


_TOLD = "an image has many patches in the sums; take other scan.first_neighbours"
_SPREAD: dict[str, Part] = {"outer": Sum(), "counts": Count()}
_TOGETHER: dict[str, Part] = {"patches": Sum(), "images": Sum()}
SPREADS = Exchange("covariance of patches", Transform, Spread, _SPREAD, images=_TOLD, once=True)
ATOMS = Exchange("atoms", Transform, ClusterSums, PARTS, images=_TOLD, once=True)
TOGETHER = Exchange("atoms together", Transform, Together, _TOGETHER, images=_TOLD, once=True)


def transform_stage(problem: Problem) -> Stage:
    """The lessons of the transform, for images of a problem.

    Raises:
        UsageError: Images are too small for patches.
    """
    channels, height, width = problem.image_shape
    if min(height, width) < _SMALLEST:
        raise UsageError(
            f"scan.first_neighbours = transform takes images of at least {_SMALLEST} pixels a "
            f"side, and these have {height} by {width}: take pixels or centred"
        )
    values, atoms = channels * PATCH**2, problem.config.section(ScanConfig).atoms
    every = max(1, problem.samples // _IMAGES)
    lessons = [
        LearnWhitening(every, atoms, values),
        *[LearnAtoms(every, atoms, values)] * _STEPS,
        LearnEmbedding(every, atoms),
    ]
    return Stage(Transform, lessons, _holder)


def _holder(known: Transform, client: Client) -> Client:
    """A holder of the same images, which can describe them."""
    made = Client(client.id, client.name, client.images, client.labels)
    made.scratch[DESCRIBE] = lambda: features(known, client.images)
    return made


@dataclass(frozen=True)
class _Sums(SummedWork[Transform, Any]):
    """The clients' half of a lesson; a client with too few images tells nothing."""

    crew: Crew
    lesson: "_Learn"

    @property
    def exchange(self) -> AnyExchange:  # type: ignore[override]
        """What both sides know."""
        return self.lesson.exchange

    def local_sum(
        self, task: Task, message: Transform, clients: Sequence[Client], randomness: Randomness
    ) -> Any:
        """Sums over one image in ``every``."""
        with section(self.exchange.name), torch.no_grad():
            threads = 1 if clients[0].images.is_cuda else None
            return added_up(mapped(lambda each: self._of(message, each), clients, threads))

    def _of(self, message: Transform, client: Client) -> Any:
        images = client.images[:: self.lesson.every]
        if len(images) < self.crew.least:
            zeros = self.lesson.zeros()
            there = {name: part.to(images.device) for name, part in pack(zeros).items()}
            return unpack(type(zeros), there)
        parts = batches(images, self.lesson.atoms)
        total = added_up(self.lesson.of(message, part) for part in parts)
        return self.lesson.told(total, self.crew.least)


@dataclass(frozen=True)
class _Learn(Lesson):
    """A lesson about the patches of one image in ``every``."""

    every: int
    atoms: int

    def work(self, crew: Crew) -> _Sums:
        """The clients' half."""
        return _Sums(crew, self)

    @abstractmethod
    def of(self, message: Transform, images: Tensor) -> Any:
        """Sums over some images."""

    def told(self, total: Any, least: int) -> Any:
        """What a client tells of the sums over its images: nothing over fewer than ``least``."""
        return total


@dataclass(frozen=True)
class LearnWhitening(_Learn):
    """The covariance of patches, of which the server makes W, and random directions as atoms.

    Whitened patches have the same variance in all directions, so that random directions are as
    good a start as patches, and of nobody's image.
    """

    values: int
    exchange = SPREADS
    gives = "whitening"

    def zeros(self) -> Spread:
        """Sums over no patch."""
        zeros = torch.zeros(self.values, self.values, dtype=torch.float64)
        return Spread(zeros, torch.zeros(1, dtype=torch.float64))

    def of(self, message: Transform, images: Tensor) -> Spread:
        """Sums over the patches of some images."""
        rows = patches(images).flatten(0, 1).double()
        return Spread(rows.T @ rows, rows.new_tensor([len(rows)]))

    def check(self, update: Spread, senders: Sequence[Member]) -> None:
        """Refuse negative variances."""
        if bool((update.outer.diagonal() < 0).any()) or bool(update.counts < 0):
            raise RefusedUpdateError("variances of patches are negative")

    def learn(self, known: Transform, total: Spread, randomness: Randomness) -> Transform:
        """W, and random directions."""
        covariance = (total.outer + total.outer.T) / (2 * total.counts.clamp(min=1))
        variances, vectors = torch.linalg.eigh(covariance)
        scales = (variances.clamp(min=0) + _REGULAR).rsqrt()
        directions = torch.randn(
            self.atoms, self.values, generator=randomness.generator("atoms")
        ).to(covariance.device)
        return replace(
            known,
            whitening=((vectors * scales) @ vectors.T).float(),
            dictionary=F.normalize(directions, dim=1),
        )


@dataclass(frozen=True)
class LearnAtoms(_Learn):
    """A step of Lloyd's algorithm on the sphere: an atom moves to the mean of its patches."""

    values: int
    exchange = ATOMS
    gives = "dictionary"

    def zeros(self) -> ClusterSums:
        """Sums over no patch."""
        return ClusterSums.zeros(self.atoms, self.values)

    def of(self, message: Transform, images: Tensor) -> AtomSums:
        """Sums over some of the patches of some images."""
        points = whitened(learnt(message.whitening), _some(patches(images), _FOR_ATOMS))
        nearest = (points @ learnt(message.dictionary).T).argmax(dim=1)
        counts = torch.bincount(nearest, minlength=self.atoms).double()
        has = points.new_zeros(len(images), self.atoms).scatter_(
            1, nearest.view(len(images), -1), 1
        )
        return AtomSums(sums_by(nearest, points, self.atoms), counts, has.sum(dim=0).double())

    def told(self, total: AtomSums, least: int) -> ClusterSums:
        """The sums of atoms that enough images have."""
        enough = (total.images >= least).double()
        return ClusterSums(total.sums * enough.unsqueeze(1), total.counts * enough)

    def check(self, update: ClusterSums, senders: Sequence[Member]) -> None:
        """Refuse counts below 0, and means that are longer than patches."""
        # Rounding of secure sums is far below a tenth of a patch.
        longest = 1.1 * update.counts + 0.1
        if bool((torch.linalg.vector_norm(update.sums, dim=1) > longest).any()):
            raise RefusedUpdateError("means of patches are longer than patches")

    def learn(self, known: Transform, total: ClusterSums, randomness: Randomness) -> Transform:
        """The atoms; one without patches stays."""
        means = cluster_means([total], learnt(known.dictionary))
        return replace(known, dictionary=F.normalize(means, dim=1))


@dataclass(frozen=True)
class LearnEmbedding(_Learn):
    """Which atoms occur together, of which the server makes the embedding."""

    exchange = TOGETHER
    gives = "embedding"

    def zeros(self) -> Together:
        """Sums over no image."""
        zeros = torch.zeros(self.atoms * (self.atoms + 1) // 2, dtype=torch.float64)
        return Together(zeros, zeros)

    def of(self, message: Transform, images: Tensor) -> Together:
        """Sums over some images, and some of their patches: whole matrices."""
        found = codes(learnt(message.whitening), learnt(message.dictionary), images)
        some = _some(found, _FOR_PAIRS)
        counts = found.sum(dim=1).double()
        # Whole numbers, which float32 holds exactly for the few patches of a batch.
        return Together((some.T @ some).double(), counts.T @ counts)

    def told(self, total: Together, least: int) -> Together:
        """Upper triangles, which say all of symmetric matrices."""
        return Together(_triangle(total.patches), _triangle(total.images))

    def check(self, update: Together, senders: Sequence[Member]) -> None:
        """Refuse negative sums."""
        if any(bool((part < 0).any()) for part in (update.patches, update.images)):
            raise RefusedUpdateError("atoms occur together less than never")

    def learn(self, known: Transform, total: Together, randomness: Randomness) -> Transform:
        """The embedding."""
        b, c = self._square(total.patches), self._square(total.images)
        variances, vectors = torch.linalg.eigh(b)
        there = variances > _LEAST_EIGENVALUE * variances[-1]
        root = (vectors * torch.where(there, variances, torch.inf).rsqrt()) @ vectors.T
        _, leading = torch.linalg.eigh(root @ c @ root)
        chosen = leading[:, :-1].flip(1)[:, :DIMENSIONS]
        return replace(known, embedding=(root @ chosen).float())

    def _square(self, triangle: Tensor) -> Tensor:
        found = triangle.new_zeros(self.atoms, self.atoms)
        rows, columns = torch.triu_indices(self.atoms, self.atoms, device=triangle.device)
        found[rows, columns] = triangle
        return found + found.triu(1).T


def _some(of_patches: Tensor, count: int) -> Tensor:
    """About so many of the patches of each image, evenly: (patches, …)."""
    every = max(1, of_patches.shape[1] // count)
    return of_patches[:, every // 2 :: every].flatten(0, 1)


def _triangle(square: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix, float64."""
    rows, columns = torch.triu_indices(*square.shape, device=square.device)
    return square[rows, columns].double()
