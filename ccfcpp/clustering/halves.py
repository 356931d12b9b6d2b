"""Whether two halves of the images have the same clusters: prediction strength by sums.

Each client splits its images in two at random. For either half over all clients, the server makes
centroids by k-means: of a codebook of two cells for each cluster, which sums over the half's
images move a few times (``kmeans.start`` says why a codebook). Each image is then assigned by the
centroids of both halves, and the two clusterings are compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.blocks import blocks
from ccfcpp.clustering.kmeans.centroids import ClusterSums, SumsWork
from ccfcpp.clustering.kmeans.codebook import codebook_kmeans
from ccfcpp.clustering.kmeans.server import assigned
from ccfcpp.core.metrics import prediction_strength
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import Exchange, Figures
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import added_up, pack

MOVES = 3
"""Exchanges in which cells move."""
_CELLS_OF_A_CLUSTER = 2


def first_cells(means: Tensor, spreads: Tensor, generator: torch.Generator) -> Tensor:
    """Cells of either half around the means of the clusters, of shape (2, 2k, d).

    Args:
        means: Of shape (k, d).
        spreads: Mean distance of a cluster's points from its mean, (k,).
        generator: Of the directions, on the CPU.
    """
    k, d = means.shape
    drawn = torch.randn(2, _CELLS_OF_A_CLUSTER, k, d, generator=generator, dtype=torch.float64)
    cells: Tensor = means + drawn.to(means) * (spreads / d**0.5).unsqueeze(1)
    return cells.flatten(1, 2)


def nearest_of_half(points: Tensor, half: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of each point among those of one half, int64 of shape (samples,).

    Args:
        points: Of shape (samples, d).
        half: Among whose centres, 0 or 1 for each point, int64.
        centres: Of both halves, (2, m, d).
    """
    found = torch.empty_like(half)
    for number, own in enumerate(centres):
        there = (half == number).nonzero().flatten()
        for part in blocks(there, own.numel()):
            found[part] = assigned(points[part].double(), own)
    return found


@dataclass(frozen=True)
class MoveHalves(SumsWork[Any, Any, ClusterSums]):
    """The server's half: cells move, and in the end the centroids of either half are found.

    Attributes:
        exchange: In which the sums are sent.
        ends: Whether the cells have moved often enough.
    """

    exchange: Exchange[Any, ClusterSums]
    ends: bool = False

    def is_due(self, state: Any) -> bool:
        """Whether there are cells."""
        return state.halves is not None

    def broadcast(self, state: Any) -> Any:
        """The model, and the cells of both halves."""
        return self.exchange.message(state.model, state.halves)

    def form(self, message: Any) -> Form:
        """A sum and a number for each cell of either half."""
        _, cells, dimensions = message.halves.shape
        return form_of(pack(ClusterSums.zeros(2 * cells, dimensions)))

    def aggregate(
        self, state: Any, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Any, Figures]:
        """The cells' means; one without images stays. There is no end with too few of them."""
        total, cells = added_up(updates), state.halves
        counts = total.counts.view(cells.shape[:2])
        means = total.sums.view(cells.shape) / counts.clamp(min=1).unsqueeze(2)
        moved = torch.where(counts.unsqueeze(2) > 0, means, cells.to(means))
        if not self.ends:
            return replace(state, halves=moved), {}
        clusters = cells.shape[1] // _CELLS_OF_A_CLUSTER
        if bool(((counts > 0).sum(dim=1) < clusters).any()):
            return replace(state, halves=None), {}
        found = []
        for number, (own, weights) in enumerate(zip(moved, counts, strict=True)):
            there, seed = weights > 0, randomness.integer(f"centroids of half {number}")
            found.append(codebook_kmeans(own[there], weights[there], clusters, seed))
        return replace(state, halves=torch.stack(found)), {}


class CompareHalves(MoveHalves):
    """The server's half of the last exchange: how images are assigned by either half."""

    def form(self, message: Any) -> Form:
        """For each cluster of a half's own, how its images are assigned by the other half."""
        clusters = message.halves.shape[1]
        return form_of(pack(ClusterSums.zeros(2 * clusters, clusters)))

    def aggregate(
        self, state: Any, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Any, Figures]:
        """The prediction strength, averaged over both halves; none where images are too few."""
        clusters = state.halves.shape[1]
        tables = added_up(updates).sums.view(2, clusters, clusters)
        first, second = map(prediction_strength, tables)
        mean = None if first is None or second is None else (first + second) / 2
        return replace(state, stability=mean), {}
