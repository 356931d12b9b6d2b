"""Metrics: agreement of clusters with classes, spectra of representations, distances."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]
_POINTS_AT_A_TIME = 4096


def match_clusters(classes: Integers, clusters: Integers) -> Integers:
    """Return the class that each sample's cluster is matched with (Hungarian method).

    If there are more clusters than classes, the samples of an unmatched cluster get the label
    -1. All arrays have the shape (samples,); clusters are any integers, in any number.
    """
    # Imported here and below, where they are needed: a run starts faster without them.
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    counts = contingency_matrix(classes, clusters)
    class_names, cluster_names = np.unique(classes), np.unique(clusters)
    matched_classes, matched_clusters = linear_sum_assignment(counts, maximize=True)
    names = np.full(len(cluster_names), -1, dtype=np.int64)
    names[matched_clusters] = class_names[matched_classes]
    return names[np.searchsorted(cluster_names, clusters)]


def clustering_scores(classes: Integers, clusters: Integers) -> dict[str, float]:
    """Compute all scores of a clustering against the true classes.

    Args:
        classes: True classes, shape (samples,), at least one sample.
        clusters: Cluster of each sample, shape (samples,); any integers, in any number.

    Returns:
        ``nmi`` (divided by the arithmetic mean of the entropies, as in the CCFC authors' code),
        ``nmi_geometric`` (by the geometric mean: Strehl and Ghosh 2002), ``kappa`` (Cohen's) and
        ``accuracy`` after Hungarian matching, and ``ari``.

    Example:
        >>> import numpy as np
        >>> scores = clustering_scores(np.array([0, 0, 1, 1]), np.array([5, 5, 7, 7]))
        >>> scores["nmi"], scores["accuracy"]
        (1.0, 1.0)
    """
    from sklearn.metrics import (
        adjusted_rand_score,
        cohen_kappa_score,
        normalized_mutual_info_score,
    )

    matched = match_clusters(classes, clusters)
    # With one class in one cluster, chance agreement is 1 as well, and kappa would be 0/0.
    kappa = 1.0 if np.array_equal(classes, matched) else cohen_kappa_score(classes, matched)
    geometric = normalized_mutual_info_score(classes, clusters, average_method="geometric")
    return {
        "nmi": float(normalized_mutual_info_score(classes, clusters)),
        "nmi_geometric": float(geometric),
        "kappa": float(kappa),
        "accuracy": float(np.mean(classes == matched)),
        "ari": float(adjusted_rand_score(classes, clusters)),
    }


def contingency_table(rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    """Count how often each pair (row, column) occurs, as int64 of shape (height, width).

    Rows and columns are integers below ``height`` and ``width``, of shape (samples,).
    """
    counts, ones = torch.zeros(height, width, dtype=torch.int64), torch.ones_like(rows)
    return counts.index_put_((rows, columns), ones, accumulate=True)


def expand_table(table: Tensor) -> tuple[Tensor, Tensor]:
    """Expand a contingency table to the row and the column of each sample, int64 (samples,)."""
    rows, columns = table.nonzero(as_tuple=True)
    times = table[rows, columns]
    return rows.repeat_interleave(times), columns.repeat_interleave(times)


def table_scores(table: Tensor, clustered: bool) -> dict[str, float]:
    """Compute the scores of the samples that a contingency table counts.

    Args:
        table: int64 of shape (classes, clusters or predicted classes); not all 0.
        clustered: Whether columns are clusters, for ``clustering_scores``; else predicted classes,
            for the accuracy.
    """
    if not clustered:
        return {"accuracy": float(table.diagonal().sum() / table.sum())}
    classes, clusters = expand_table(table)
    return clustering_scores(classes.numpy(), clusters.numpy())


def covariance(points: Tensor) -> Tensor:
    """Compute Σ = 1/N Σᵢ(zᵢ − z̄)(zᵢ − z̄)ᵀ, float64 of shape (dimensions, dimensions).

    Source: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning*,
    Section 3.1.

    Args:
        points: Floats of shape (points, dimensions), at least one point.
    """
    centred = points.double() - points.double().mean(dim=0)
    return centred.T @ centred / len(points)


def spectrum(representations: Tensor) -> Tensor:
    """Compute singular values of the ``covariance`` of representations (samples, dimensions).

    Returns:
        float64 tensor of shape (dimensions,) on the CPU, descending, not negative; NaN if the
        representations are not finite.
    """
    z = representations.double()
    if not torch.isfinite(z).all():
        return torch.full((z.shape[1],), torch.nan, dtype=torch.float64)
    values: Tensor = torch.linalg.eigvalsh(covariance(z))
    # Rounding may bring an eigenvalue of 0 below it.
    return values.flip(0).clamp(min=0).cpu()


ROUNDING = 1e-12
"""Singular values below this share of the largest one are rounding errors."""


def above_rounding(singular_values: Tensor) -> Tensor:
    """Raise singular values below 10⁻¹² of the largest to that bound, so that logarithms exist."""
    least = max(ROUNDING * float(singular_values.max()), 1e-300)
    return singular_values.clamp(min=least)


def spectral_gap(local_values: Tensor, global_values: Tensor) -> float:
    """Compute the gap R of Eq. (1) between a local model's singular values and the global model's.

    Source: Shi et al., *Understanding and Mitigating Dimensional Collapse in Federated Learning*
    (TPAMI), Section 3.3: R = 1/K Σₖ log(λₖ⁽ˡ⁾ / λₖ⁽ᵍ⁾), here over all K dimensions.

    Args:
        local_values: Singular values of a covariance, descending, shape (dimensions,).
        global_values: Those of the global model's representations of the same images.

    Returns:
        Above 0 if averaging made singular values smaller. Values below 10⁻¹² of the largest one
        are rounding errors and are raised to that bound; NaN if a spectrum has NaN.
    """
    local_values, global_values = local_values.double(), global_values.double()
    least = (ROUNDING * torch.maximum(local_values, global_values).max()).clamp(min=1e-300)
    ratios = local_values.clamp(min=least) / global_values.clamp(min=least)
    return float(ratios.log().mean())


def tail_share(singular_values: Tensor) -> float:
    """Compute the share of the smaller half of descending singular values in their sum.

    Returns:
        From 0, if half of the dimensions have collapsed, to about ½, if all are equal.
    """
    total = singular_values.sum()
    if total == 0:
        return 0.0
    return float(singular_values.flip(0)[: len(singular_values) // 2].sum() / total)


def effective_rank(singular_values: Tensor) -> float:
    """Compute the effective rank (Roy and Vetterli 2007): exp(entropy of the values' shares).

    Returns:
        From 1, if one direction holds everything, to the number of dimensions; 0 if all
        values are 0.
    """
    total = singular_values.sum()
    return float(torch.special.entr(singular_values / total).sum().exp()) if total else 0.0


def calibration(probabilities: Tensor, right: Tensor, parts: int = 10) -> tuple[Tensor, float]:
    """Compare the probabilities of predictions with the share that is right: calibration error.

    Source: Nguyen and O'Connor 2015, *Posterior calibration and exploratory analysis for natural
    language processing models*: the error over bins with equally many samples.

    Args:
        probabilities: Tensor of shape (samples,), one sample at least.
        right: Whether each prediction is right, bool of shape (samples,).
        parts: Number of bins, from the lowest probabilities to the highest.

    Returns:
        The mean probability, the share that is right, and the number of samples of each bin,
        float64 of shape (at most parts, 3); and the mean of |probability − share| over samples.
    """
    order = torch.argsort(probabilities, stable=True)
    pairs = torch.stack([probabilities[order].double(), right[order].double()], dim=1)
    chunks = [part for part in torch.tensor_split(pairs, parts) if len(part)]
    rows = torch.stack([torch.cat([c.mean(dim=0), c.new_tensor([len(c)])]) for c in chunks])
    errors = (rows[:, 0] - rows[:, 1]).abs()
    return rows, float((errors * rows[:, 2]).sum() / len(pairs))


def distances_to_centroids(
    points: Tensor, clusters: Tensor, centroids: Tensor, by_angle: bool
) -> Tensor:
    """Compute the distance of each point from its cluster's centroid, of shape (points,).

    Args:
        points: Floats of shape (points, dimensions).
        clusters: Cluster of each point, int64 of shape (points,).
        centroids: Floats of shape (clusters, dimensions).
        by_angle: Whether distances are angles in degrees; else Euclidean.
    """
    # In parts: the pixels of large images in double precision take much memory.
    parts = zip(
        torch.split(points, _POINTS_AT_A_TIME),
        torch.split(clusters, _POINTS_AT_A_TIME),
        strict=True,
    )
    return torch.cat(
        [_distances(part.double(), centroids[of].double(), by_angle) for part, of in parts]
    )


def _distances(points: Tensor, own: Tensor, by_angle: bool) -> Tensor:
    if by_angle:
        return torch.rad2deg(torch.arccos(F.cosine_similarity(points, own, dim=1).clamp(-1, 1)))
    distances: Tensor = torch.linalg.vector_norm(points - own, dim=1)
    return distances


def simplified_silhouettes(distances: Tensor, clusters: Tensor, sizes: Tensor) -> Tensor:
    """Compute the simplified silhouette of each point, from distances to the clusters' means.

    Source: Hruschka, Campello and de Castro 2006, *Evolving clusters in gene-expression data*,
    Section 3.1: s = (b − a) / max(a, b) with the distances a to the own mean and b to the nearest
    other one; 0 for the only point of a cluster. It is the silhouette (Rousseeuw 1987) with
    distances to means in the place of mean distances to points.

    Args:
        distances: From each point to each cluster's mean, shape (points, k).
        clusters: Cluster of each point, int64 of shape (points,).
        sizes: Number of points of each cluster, shape (k,); clusters without points are ignored.

    Returns:
        Shape (points,), from −1 to 1; 0 if there is no other cluster.
    """
    own = distances.gather(1, clusters[:, None])[:, 0]
    others = distances.masked_fill(sizes == 0, torch.inf)
    other = others.scatter(1, clusters[:, None], torch.inf).amin(dim=1)
    largest = torch.maximum(own, other)
    silhouettes = torch.where(largest > 0, (other - own) / largest, 0.0)
    return torch.where(other.isfinite() & (sizes[clusters] > 1), silhouettes, 0.0)


def davies_bouldin(means: Tensor, spreads: Tensor) -> float:
    """Compute the Davies–Bouldin index, the mean similarity of clusters to their most similar one.

    Source: Davies and Bouldin 1979, *A Cluster Separation Measure*, with p = q = 2 as in
    scikit-learn: the mean over i of max over j of (Sᵢ + Sⱼ) / ‖mᵢ − mⱼ‖; 0 is best, and
    the result if all means are equal or all spreads are 0.

    Args:
        means: The clusters' means m, shape (k, dimensions), two at least.
        spreads: Mean distance S of a cluster's points from its mean, shape (k,).
    """
    distances = torch.cdist(means, means, compute_mode="donot_use_mm_for_euclid_dist")
    if not bool((distances > 0).any()) or not bool((spreads > 0).any()):
        return 0.0
    pairs = (spreads[:, None] + spreads) / distances.masked_fill(distances == 0, torch.inf)
    return float(pairs.amax(dim=1).mean())


def prediction_strength(table: Tensor) -> float | None:
    """Compute how well another clustering predicts which points share a cluster; 1 is best.

    Source: Tibshirani and Walther 2005, *Cluster Validation by Prediction Strength*, Eq. (2.1):
    the share of a cluster's pairs of points that share a cluster in the other clustering, too, for
    the cluster where it is smallest. The paper takes the largest k for which it is 0.8 or more.

    Args:
        table: Contingency table: number of points by cluster (row) and by cluster of the other
            clustering (column), shape (k, m).

    Returns:
        From 0 to 1; None if no cluster has two points.
    """
    sizes = table.sum(dim=1)
    pairs, together = sizes * (sizes - 1), (table * (table - 1)).sum(dim=1)
    there = sizes > 1.5  # of sums that may be rounded
    return float((together[there] / pairs[there]).min().clamp(0, 1)) if bool(there.any()) else None


def sum_tables(tables: Mapping[int, Tensor]) -> Tensor | None:
    """Sum clients' contingency tables; return None if there are none or all entries are 0."""
    total = sum(tables.values(), torch.tensor(0))
    return total if int(total.sum()) > 0 else None
