"""Initial centroids of k-means by sums over all clients: k-means++ on a codebook.

To draw k-means++ seeds among points, clients would have to send points. Here the server grows a
codebook of cells first, as Linde, Buzo and Gray (*An Algorithm for Vector Quantizer Design*, IEEE
Transactions on Communications 1980) do: the cells with the largest scatter are split in two, and
clients send for each cell the sum, the number and the scatter of their points in it. Cells are
means over all clients' points, of five of them and more on average. If there are fewer cells
than clusters in the end, as with few points, cells are split until each may be a single point.
k-means++ (Arthur and Vassilvitskii, SODA 2007) then draws among the cells, each with the weight of
its points. k-means starts from the best of several k-means of the codebook; or several of them are
compared (``trials``).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.algorithm import Problem, rank_candidates
from ccfcpp.clustering.kmeans.centroids import (
    PARTS,
    AnyInitState,
    ClusterSums,
    SumsWork,
    cluster_sums,
    sum_by_group,
)
from ccfcpp.clustering.kmeans.chunks import SumBlocks
from ccfcpp.clustering.kmeans.codebook import Codebook, split_cells
from ccfcpp.clustering.kmeans.restarts import trial_works
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import AnyServerWork, Exchange, Images, Metrics
from ccfcpp.engine.payload import pack, sum_updates
from ccfcpp.engine.update_format import Sum, UpdateFormat, format_of

_CELLS, _CELLS_OF_A_CLUSTER = 64, 4
_POINTS_OF_A_CELL = 5


@dataclass(frozen=True)
class Cells:
    """The codebook as clients receive it: float64 of shape (m, d)."""

    cells: Tensor


@dataclass(frozen=True)
class CellSums(ClusterSums):
    """A client's sums over its points, by their nearest cell.

    Attributes:
        squares: float64 (m,): Σ ‖x − c‖² over the points x of each cell c.
    """

    squares: Tensor


CODEBOOK_SUMS = Exchange(
    "start",
    Cells,
    CellSums,
    {**PARTS, "squares": Sum()},
    images=Images(largest={"counts": 1.0}),
)


@dataclass(frozen=True)
class SumCells(SumBlocks[Cells, CellSums]):
    """Client side of an exchange: each client sums its points by codebook cell.

    Attributes:
        points: Maps images or vectors to points, of shape (samples, d).
    """

    points: Callable[[Tensor], Tensor]
    exchange = CODEBOOK_SUMS

    def width(self, message: Cells, row: int) -> int:
        """Return how many numbers a point takes: a distance to each cell."""
        return len(message.cells)

    def block(self, message: Cells, images: Tensor) -> CellSums:
        """Assign a block of points to cells, and sum them."""
        points = self.points(images)
        cells = message.cells.to(points.device)
        labels, points = assign_points(points, cells), points.double()
        squares = (points - cells[labels]).square().sum(dim=1, keepdim=True)
        bounding = self.context.bounding
        sums = cluster_sums(points, labels, len(cells), CODEBOOK_SUMS, bounding, least=0)
        if bounding is not None:
            squares = bounding.rows(CODEBOOK_SUMS, "squares", squares)
        scatter = sum_by_group(labels, squares, len(cells)).flatten()
        return CellSums(sums.sums, sums.counts, scatter)


def _zeros(cells: Tensor) -> CellSums:
    sums = torch.zeros_like(cells, dtype=torch.float64)
    return CellSums(sums, sums[:, 0], sums[:, 0])


@dataclass(frozen=True)
class GrowCodebook(SumsWork[AnyInitState, Cells, CellSums]):
    """The server's step: each cell moves to the mean of its points, and may then be split.

    Attributes:
        clusters: Number of clusters k, or its largest candidate.
        fewest: Smallest candidate for k if k is chosen from the data; else 0.
        dimensions: Number d of dimensions of a point.
        most: Number of cells of the complete codebook.
        splits: Whether cells are split after the step.
        ends: Whether the codebook is complete after the step, so that centroids or starts follow.
        starts: Number of initialisations; a single one is not compared.
        samples: Points of all clients.
        tries: Number of further splits while there are fewer cells than clusters.
        again: Whether this step exists for such splits only.
    """

    clusters: int
    fewest: int
    dimensions: int
    most: int
    splits: bool
    ends: bool
    starts: int
    samples: int = 0
    tries: int = 0
    again: bool = False
    exchange = CODEBOOK_SUMS

    def is_due(self, state: AnyInitState) -> bool:
        """Return whether the codebook is incomplete."""
        return state.cells is not None or not self.ends

    def broadcast(self, state: AnyInitState) -> Cells:
        """Return the message to clients: the cells, at first a single one."""
        first = torch.zeros(1, self.dimensions, dtype=torch.float64)
        return Cells(first if state.cells is None else state.cells)

    def update_format(self, message: Cells) -> UpdateFormat:
        """Return an update's shapes and dtypes: a sum, a count and a scatter for each cell."""
        return format_of(pack(_zeros(message.cells)))

    def project_noisy(self, message: Cells, update: CellSums) -> CellSums:
        """Set counts and scatters that noise made negative to 0."""
        return replace(
            update, counts=update.counts.clamp(min=0), squares=update.squares.clamp(min=0)
        )

    def aggregate(
        self, state: AnyInitState, updates: Iterable[CellSums], randomness: Randomness
    ) -> tuple[AnyInitState, Metrics]:
        """Move or split the cells, or return the centroids; cells without points are dropped."""
        total = sum_updates(updates)
        held = total.counts >= 1
        if not bool(held.any()):
            return state, {}
        counts, before = total.counts[held], self.broadcast(state).cells.to(total.sums)
        means = total.sums[held] / counts.unsqueeze(1)
        moved = (means - before[held]).square().sum(dim=1)
        book = Codebook(means, counts, (total.squares[held] - counts * moved).clamp(min=0))
        whole = float(total.counts.sum()) >= self.samples
        if self.again and not whole:
            # Clients do not send sums of such small cells, so the cells before the split remain.
            book = Codebook(before, torch.ones_like(before[:, 0]), torch.zeros_like(before[:, 0]))
        lacks = self.ends and whole and self.tries > 0 and len(means) < self.clusters
        if self.splits or lacks:
            generator = randomness.generator(f"split {len(means)}")
            means = split_cells(book, self.most, generator, **({"fewest": 2} if lacks else {}))
            lacks = lacks and len(means) > len(book.cells)
        if self.ends and not lacks:
            return self._ended(state, book, randomness.integer("start")), {}
        return replace(state, cells=means), {}

    def _ended(self, state: AnyInitState, book: Codebook, seed: int) -> AnyInitState:
        """Set the centroids or initialisations; set the evidence for each k if k is chosen."""
        evidence, clusters = None, self.clusters
        if self.fewest:
            evidence = book.evidence(self.fewest, self.clusters, seed)
            clusters = rank_candidates(evidence, self.fewest)[0]
        known = replace(state, cells=None, evidence=evidence)
        if self.starts == 1:
            return replace(known, centroids=book.kmeans(clusters, seed))
        return replace(known, trials=book.starts(clusters, seed, self.starts))


def init_works(problem: Problem, dimensions: int, starts: int) -> list[AnyServerWork]:
    """Return the server's work of the start: a mean, two exchanges per doubling, and trials.

    Args:
        problem: Configuration, data shape, number of clusters and device.
        dimensions: Number d of dimensions of a point.
        starts: Number of initialisations; several are compared.
    """
    clusters, samples = problem.clusters, problem.samples
    tries = 0 if problem.protected else clusters
    most = min(max(_CELLS, _CELLS_OF_A_CLUSTER * clusters), samples // _POINTS_OF_A_CELL)
    most = max(most, 2 * clusters)
    last = 2 * math.ceil(math.log2(most))
    growth = [
        GrowCodebook[Any](
            *(clusters, problem.fewest, dimensions, most, number % 2 == 0, number == last, starts),
            *(samples, tries),
        )
        for number in range(last + 1)
    ]
    growth += [replace(growth[-1], tries=left, again=True) for left in reversed(range(tries))]
    return [*growth, *(trial_works() if starts > 1 else ())]
