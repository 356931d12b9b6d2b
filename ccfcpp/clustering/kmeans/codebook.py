"""A codebook, which approximates many points, and its clusters."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.chunks import squared_distances
from ccfcpp.core.metrics import simplified_silhouettes

_FEWEST_TO_SPLIT = 4
_RESTARTS = 10
_ROUNDING = 10 * torch.finfo(torch.float64).eps
"""By which share of its distance from the origin a mean may be off."""


@dataclass(frozen=True)
class Codebook:
    """A codebook: cells, with each point in the cell nearest to it.

    Attributes:
        cells: Means of the cells' points, float64 of shape (m, d).
        counts: Number of points in each cell, (m,).
        scatter: Σ ‖x − c‖² over the points x of each cell c, (m,).
    """

    cells: Tensor
    counts: Tensor
    scatter: Tensor

    def kmeans(self, clusters: int, seed: int) -> Tensor:
        """Return centroids, float64 of shape (at most ``clusters``, d): the best of ten k-means."""
        return codebook_kmeans(self.cells, self.counts, clusters, seed)

    def starts(self, clusters: int, seed: int, count: int) -> Tensor:
        """Return the result of ``kmeans`` and of single runs: float64 (count, at most k, d)."""
        others = [
            codebook_kmeans(self.cells, self.counts, clusters, seed + number, restarts=1)
            for number in range(1, count)
        ]
        return torch.stack([self.kmeans(clusters, seed), *others])

    def evidence(self, fewest: int, most: int, seed: int) -> Tensor:
        """Compute the mean simplified silhouette of all points for each number of clusters.

        For a point x of the cell c and a centroid μ, ‖x − μ‖ is estimated by its root mean square
        over the cell, the root of ‖c − μ‖² + scatter / count.

        Args:
            fewest: Smallest number of clusters.
            most: Largest number of clusters.
            seed: Seed of k-means.

        Returns:
            float64 of shape (most − fewest + 1,), from 0 to 1; 0 if there are too few cells.
        """
        found = torch.zeros(most - fewest + 1, dtype=torch.float64)
        for clusters in range(fewest, min(most, len(self.cells)) + 1):
            found[clusters - fewest] = self._silhouette(self.kmeans(clusters, seed))
        return found

    def _silhouette(self, centroids: Tensor) -> float:
        spread = (self.scatter / self.counts).unsqueeze(1)
        apart = (squared_distances(self.cells, centroids) + spread).sqrt()
        own = apart.argmin(dim=1)
        sizes = self.counts.new_zeros(len(centroids)).index_add(0, own, self.counts)
        silhouettes = simplified_silhouettes(apart, own, sizes)
        return float((self.counts * silhouettes).sum() / self.counts.sum())


def split_cells(
    book: Codebook, most: int, generator: torch.Generator, fewest: int = _FEWEST_TO_SPLIT
) -> Tensor:
    """Split the cells with the largest scatter in two, up to a number of cells.

    Args:
        book: The cells.
        most: Largest number of cells.
        generator: Draws the directions, on the CPU.
        fewest: The fewest points of a cell that is split.
    """
    cells, counts, scatter = book.cells, book.counts, book.scatter
    order = scatter.argsort(descending=True, stable=True)
    apart = scatter > counts * (_ROUNDING * cells).square().sum(dim=1)
    order = order[(counts[order] >= fewest) & apart[order]]
    order = order[: max(0, most - len(cells))]
    deviation = (scatter[order] / counts[order] / cells.shape[1]).sqrt().unsqueeze(1)
    drawn = torch.randn(len(order), cells.shape[1], generator=generator, dtype=torch.float64)
    shift = 0.5 * deviation * drawn.to(cells)
    whole = torch.ones(len(cells), dtype=torch.bool, device=cells.device)
    whole[order] = False
    return torch.cat([cells[whole], cells[order] - shift, cells[order] + shift])


def codebook_kmeans(
    cells: Tensor, counts: Tensor, clusters: int, seed: int, restarts: int = _RESTARTS
) -> Tensor:
    """Run k-means on a codebook; return the best centroids, float64 of shape (at most k, d).

    Args:
        cells: Tensor of shape (m, d).
        counts: Weight of each cell, (m,).
        clusters: Number of clusters k.
        seed: Seed of the starts.
        restarts: Number of starts.
    """
    if len(cells) <= clusters:
        return cells
    # Imported where it is needed, since scikit-learn takes most of a second. Unlike faiss, it draws
    # k-means++ seeds by the points' weights.
    from sklearn.cluster import KMeans

    found = KMeans(clusters, n_init=restarts, random_state=seed % 2**32)
    found.fit(cells.cpu().numpy(), sample_weight=counts.cpu().numpy())
    return torch.from_numpy(found.cluster_centers_).to(cells)
