"""Whether two halves of the images have the same clusters: prediction strength by sums.

Each client splits its images in two at random. For either half over all clients, the server makes
centroids by k-means: of a codebook of two cells for each cluster, which sums over the half's
images move a few times (``kmeans.start`` says why a codebook). Each image is then assigned by the
centroids of both halves, and the two clusterings are compared.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ccfcpp.clustering.evaluation.messages import CELLS, HALVES, Judged, Question
from ccfcpp.clustering.kmeans.centroids import ClusterSums, SumsWork
from ccfcpp.clustering.kmeans.codebook import codebook_kmeans
from ccfcpp.core.metrics import prediction_strength
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import Exchange, Figures
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import added_up, pack

_CELLS_OF_A_CLUSTER = 2


def first_cells(means: Tensor, spreads: Tensor, generator: torch.Generator) -> Tensor:
    """Return cells of either half around the means of the clusters, of shape (2, 2k, d).

    Args:
        means: Of shape (k, d).
        spreads: Mean distance of a cluster's points from its mean, (k,).
        generator: Of the directions, on the CPU.
    """
    k, d = means.shape
    drawn = torch.randn(2, _CELLS_OF_A_CLUSTER, k, d, generator=generator, dtype=torch.float64)
    cells: Tensor = means + drawn.to(means) * (spreads / d**0.5).unsqueeze(1)
    return cells.flatten(1, 2)


@dataclass(frozen=True)
class MoveHalves(SumsWork[Judged, Question, ClusterSums]):
    """The server's half: cells move, and in the end the centroids of either half are found.

    Attributes:
        ends: Whether the cells have moved often enough.
    """

    ends: bool = False
    exchange: Exchange[Question, ClusterSums] = CELLS

    def is_due(self, state: Judged) -> bool:
        """Return whether there are cells."""
        return state.halves is not None

    def broadcast(self, state: Judged) -> Question:
        """Send the model, and the cells of both halves."""
        return Question(state.model, halves=state.halves)

    def form(self, message: Question) -> Form:
        """Return a sum and a number for each cell of either half."""
        _, cells, dimensions = _known(message.halves).shape
        return form_of(pack(ClusterSums.zeros(2 * cells, dimensions)))

    def aggregate(
        self, state: Judged, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Judged, Figures]:
        """Move cells to their means; one without images stays. Too few of them end it."""
        total, cells = added_up(updates), _known(state.halves)
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


@dataclass(frozen=True)
class CompareHalves(MoveHalves):
    """The server's half of the last exchange: how images are assigned by either half."""

    exchange: Exchange[Question, ClusterSums] = HALVES

    def form(self, message: Question) -> Form:
        """Return, for each cluster of a half's own, how the other half assigns its images."""
        clusters = _known(message.halves).shape[1]
        return form_of(pack(ClusterSums.zeros(2 * clusters, clusters)))

    def aggregate(
        self, state: Judged, updates: Iterable[ClusterSums], randomness: Randomness
    ) -> tuple[Judged, Figures]:
        """Average the prediction strength of both halves; None where images are too few."""
        clusters = _known(state.halves).shape[1]
        tables = added_up(updates).sums.view(2, clusters, clusters)
        first, second = map(prediction_strength, tables)
        mean = None if first is None or second is None else (first + second) / 2
        return replace(state, stability=mean), {}


def _known(halves: Tensor | None) -> Tensor:
    assert halves is not None  # as ``is_due`` says
    return halves
