"""k-means on a codebook: the means of small groups of points (cells) instead of the points."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.chunks import squared_distances
from ccfcpp.core.metrics import simplified_silhouettes

_FEWEST_TO_SPLIT = 4
_RESTARTS = 10
_ROUNDING = 10 * torch.finfo(torch.float64).eps
"""Largest rounding error of a mean, relative to its norm."""


@dataclass(frozen=True)
class Codebook:
    """Approximation of many points by m cells, each the mean of the points nearest to it.

    Attributes:
        cells: Mean of the points of each cell, float64 of shape (m, d).
        counts: Number of points in each cell, of shape (m,).
        scatter: Σ ‖x − c‖² over the points x of each cell with mean c, of shape (m,).
    """

    cells: Tensor
    counts: Tensor
    scatter: Tensor

    def kmeans(self, clusters: int, seed: int) -> Tensor:
        """Run k-means on the cells; return the best of ten, float64 (at most ``clusters``, d)."""
        return codebook_kmeans(self.cells, self.counts, clusters, seed)

    def initialisations(self, clusters: int, seed: int, count: int) -> Tensor:
        """Return ``count`` sets of centroids, float64 of shape (count, at most ``clusters``, d).

        The first is the result of ``kmeans``, the others are results of single runs of k-means.
        """
        others = [
            codebook_kmeans(self.cells, self.counts, clusters, seed + number, restarts=1)
            for number in range(1, count)
        ]
        return torch.stack([self.kmeans(clusters, seed), *others])

    def evidence(self, fewest: int, most: int, seed: int) -> Tensor:
        """Estimate the mean simplified silhouette of all points for each number of clusters.

        For a point x in a cell with mean c, its distance to a centroid μ is estimated by the root
        mean square over the cell's points, √(‖c − μ‖² + scatter / count).

        Args:
            fewest: Smallest number of clusters.
            most: Largest number of clusters.
            seed: Seed of k-means.

        Returns:
            float64 of shape (most − fewest + 1,), from 0 to 1; 0 if there are too few cells.
        """
        evidence = torch.zeros(most - fewest + 1, dtype=torch.float64)
        for clusters in range(fewest, min(most, len(self.cells)) + 1):
            evidence[clusters - fewest] = self._silhouette(self.kmeans(clusters, seed))
        return evidence

    def _silhouette(self, centroids: Tensor) -> float:
        spread = (self.scatter / self.counts).unsqueeze(1)
        distances = (squared_distances(self.cells, centroids) + spread).sqrt()
        own = distances.argmin(dim=1)
        sizes = self.counts.new_zeros(len(centroids)).index_add(0, own, self.counts)
        silhouettes = simplified_silhouettes(distances, own, sizes)
        return float((self.counts * silhouettes).sum() / self.counts.sum())


def split_cells(
    book: Codebook, most: int, generator: torch.Generator, fewest: int = _FEWEST_TO_SPLIT
) -> Tensor:
    """Split the cells with the largest scatter in two; return all cells, (at most ``most``, d).

    Args:
        book: The codebook.
        most: Largest number of cells after the split.
        generator: CPU generator of the random directions.
        fewest: Fewest points of a cell that is split.
    """
    cells, counts, scatter = book.cells, book.counts, book.scatter
    order = scatter.argsort(descending=True, stable=True)
    has_spread = scatter > counts * (_ROUNDING * cells).square().sum(dim=1)
    order = order[(counts[order] >= fewest) & has_spread[order]]
    order = order[: max(0, most - len(cells))]
    deviation = (scatter[order] / counts[order] / cells.shape[1]).sqrt().unsqueeze(1)
    drawn = torch.randn(len(order), cells.shape[1], generator=generator, dtype=torch.float64)
    shift = 0.5 * deviation * drawn.to(cells)
    unsplit = torch.ones(len(cells), dtype=torch.bool, device=cells.device)
    unsplit[order] = False
    return torch.cat([cells[unsplit], cells[order] - shift, cells[order] + shift])


def codebook_kmeans(
    cells: Tensor, counts: Tensor, clusters: int, seed: int, restarts: int = _RESTARTS
) -> Tensor:
    """Run k-means on weighted cells; return the best centroids, float64 of shape (at most k, d).

    Args:
        cells: Mean of the points of each cell, of shape (m, d).
        counts: Number of points in each cell, which is its weight; of shape (m,).
        clusters: Number of clusters k.
        seed: Seed of the initialisations.
        restarts: Number of initialisations.
    """
    if len(cells) <= clusters:
        return cells
    # Imported here, since the import is slow. Unlike faiss, scikit-learn uses weights in k-means++.
    from sklearn.cluster import KMeans

    estimator = KMeans(clusters, n_init=restarts, random_state=seed % 2**32)
    estimator.fit(cells.cpu().numpy(), sample_weight=counts.cpu().numpy())
    return torch.from_numpy(estimator.cluster_centers_).to(cells)
