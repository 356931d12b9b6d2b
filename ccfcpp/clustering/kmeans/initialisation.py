"""Initial centroids of k-means from sums over all clients: k-means++ on a codebook.

To draw k-means++ seeds among points, clients would have to send points. Instead, the server first
computes a codebook of cells, as Linde, Buzo and Gray (*An Algorithm for Vector Quantizer Design*,
IEEE Transactions on Communications 1980) do: the cells with the largest scatter (sum of squared
distances) are split in two, and clients send the sum, number and scatter of their points in each
cell. On average a cell is the mean of five or more points of all clients. If there are fewer cells
than clusters at the end, as with few points, cells are split further, until each may hold a single
point. k-means with k-means++ (Arthur and Vassilvitskii, SODA 2007) then clusters the cells, each
weighted by its number of points. The best of several such results gives the initial centroids; or
several initialisations are compared on the clients' points (``kmeans.restarts``).
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
from ccfcpp.clustering.kmeans.restarts import STEPS, MoveTrials
from ccfcpp.clustering.kmeans.server import assign_points
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import AnyServerWork, Exchange, Images, Metrics
from ccfcpp.engine.payload import pack, sum_updates
from ccfcpp.engine.update_format import Sum, UpdateFormat, format_of

_CELLS, _CELLS_OF_A_CLUSTER = 64, 4
_POINTS_OF_A_CELL = 5


@dataclass(frozen=True)
class Cells:
    """Message to clients: the centres of the codebook's m cells, float64 of shape (m, d)."""

    cells: Tensor


@dataclass(frozen=True)
class CellSums(ClusterSums):
    """Update of a client: sums over its points in each cell (nearest to the cell's centre).

    Attributes:
        squares: Σ ‖x − c‖² over the points x in each cell with centre c, float64 of shape (m,).
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
    """Client side of exchange ``start``: sums of a client's points by nearest cell (``Cells``).

    Attributes:
        points: Function that maps images or vectors to points of shape (samples, d).
    """

    points: Callable[[Tensor], Tensor]
    exchange = CODEBOOK_SUMS

    def width(self, message: Cells) -> int:
        """Return how many numbers are computed for a point: a distance to each cell."""
        return len(message.cells)

    def block(self, message: Cells, images: Tensor) -> CellSums:
        """Assign a block of images to cells, and return the sums over each cell."""
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
    """Server side of exchange ``start``: cells move to the mean of their points and are split.

    A cell is a group of points with a common nearest centre.

    Attributes:
        problem: Its number of clusters k, or the candidates for k, and its number of points.
        dimensions: Number d of dimensions of a point.
        most: Largest number of cells.
        splits: Whether cells are split after they have moved.
        ends: Whether the codebook is then complete, so that initial centroids are computed.
        starts: Number of initialisations; if there are several, they are compared later.
        tries: Number of further splits that are possible if there are fewer cells than clusters.
        again: Whether this exchange is only for such a further split.
    """

    problem: Problem
    dimensions: int
    most: int
    splits: bool
    ends: bool
    starts: int
    tries: int
    again: bool = False
    exchange = CODEBOOK_SUMS

    def is_due(self, state: AnyInitState) -> bool:
        """Return whether the codebook is not complete yet; if it is, the exchange is left out."""
        return state.cells is not None or not self.ends

    def broadcast(self, state: AnyInitState) -> Cells:
        """Return the message to clients: the cells' centres; at first a single one, 0."""
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
        """Move and split the cells, at the end compute initial centroids; remove empty cells."""
        total = sum_updates(updates)
        non_empty = total.counts >= 1
        if not bool(non_empty.any()):
            return state, {}
        counts, before = total.counts[non_empty], self.broadcast(state).cells.to(total.sums)
        means = total.sums[non_empty] / counts.unsqueeze(1)
        moved = (means - before[non_empty]).square().sum(dim=1)
        book = Codebook(means, counts, (total.squares[non_empty] - counts * moved).clamp(min=0))
        has_all_points = float(total.counts.sum()) >= self.problem.samples
        if self.again and not has_all_points:
            # Clients do not send sums over such small cells: keep the cells as they were.
            book = Codebook(before, torch.ones_like(before[:, 0]), torch.zeros_like(before[:, 0]))
        may_split = self.ends and has_all_points and self.tries > 0
        lacks = may_split and len(means) < self.problem.clusters
        if self.splits or lacks:
            generator = randomness.generator(f"split {len(means)}")
            means = split_cells(book, self.most, generator, **({"fewest": 2} if lacks else {}))
            lacks = lacks and len(means) > len(book.cells)
        if self.ends and not lacks:
            return self._initialise(state, book, randomness.integer("start")), {}
        return replace(state, cells=means), {}

    def _initialise(self, state: AnyInitState, book: Codebook, seed: int) -> AnyInitState:
        """Return the state with centroids, or several sets of them, and the evidence for each k."""
        evidence, clusters, fewest = None, self.problem.clusters, self.problem.fewest
        if fewest:
            evidence = book.evidence(fewest, clusters, seed)
            clusters = rank_candidates(evidence, fewest)[0]
        after = replace(state, cells=None, evidence=evidence)
        if self.starts == 1:
            return replace(after, centroids=book.kmeans(clusters, seed))
        return replace(after, trials=book.initialisations(clusters, seed, self.starts))


def init_works(problem: Problem, dimensions: int, restarts: int) -> list[AnyServerWork]:
    """Return the server side of the exchanges that compute initial centroids, in order.

    Args:
        problem: Configuration, data shape, number of clusters and device.
        dimensions: Number d of dimensions of a point.
        restarts: Number of initialisations.
    """
    clusters, samples = problem.clusters, problem.samples
    tries = 0 if problem.protected else clusters
    most = min(max(_CELLS, _CELLS_OF_A_CLUSTER * clusters), samples // _POINTS_OF_A_CELL)
    most = max(most, 2 * clusters)
    last = 2 * math.ceil(math.log2(most))
    growth = [
        GrowCodebook[Any](problem, dimensions, most, n % 2 == 0, n == last, restarts, tries)
        for n in range(last + 1)
    ]
    growth += [replace(growth[-1], tries=left, again=True) for left in reversed(range(tries))]
    trials = [MoveTrials[Any](n == STEPS) for n in range(1, STEPS + 1)] if restarts > 1 else []
    return [*growth, *trials]
