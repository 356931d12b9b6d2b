"""Description of clusters by a table's columns: means of numbers, and shares of categories."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ccfcpp.clustering.kmeans.centroids import sum_by_group
from ccfcpp.core.config import VectorsConfig
from ccfcpp.data.categories import date_of
from ccfcpp.data.columns import Roles
from ccfcpp.data.images import ImageData
from ccfcpp.data.open import AnyData
from ccfcpp.data.vectors import VectorData

_MOST_CATEGORIES = 10
"""Most categories of a column that are described, the most frequent."""


def profile(data: AnyData, vectors: VectorsConfig, clusters: Tensor) -> list[dict[str, object]]:
    """Describe clusters by the columns of a table; those in which they differ most come first.

    Args:
        data: The table. Images, vectors that an encoder made, and columns without names have no
            description.
        vectors: Says which columns hold categories and dates.
        clusters: Cluster of each row, int64 of shape (rows,).

    Returns:
        A row for each column of numbers or dates, with its mean, and for each frequent category
        (of ``vectors.rare`` rows or more) with its share: over ``all`` rows, and over those of
        each cluster (``cluster 0``, ...; empty without any). Missing values do not count.
        ``deviation`` is the standard deviation (in days for dates), and ``differs`` the share of
        the variance that lies between clusters, from 0 to 1: η² (Fisher 1925, *Statistical Methods
        for Research Workers*). Both are those of a column of 0 and 1 for a category.

    Example:
        >>> from ccfcpp.data.vectors import VectorData
        >>> data = VectorData("sizes", torch.tensor([[1.0], [3.0], [8.0]]), columns=("length",))
        >>> profile(data, VectorsConfig(), torch.tensor([0, 0, 1]))[0]["cluster 0"]
        2.0
    """
    if isinstance(data, ImageData) or not data.columns or data.encoder:
        return []
    k, dates = int(clusters.max()) + 1, Roles.of(vectors).dates
    places = ["all", *(f"cluster {number}" for number in range(k))]
    rows: list[dict[str, object]] = []
    for name, category, values in _described(data, len(vectors.categories), vectors.rare):
        there = ~values.isnan()
        spread, means = _statistics(values[there], clusters[there], k)
        shown = [_readable(mean, name in dates) for mean in means.tolist()]
        begun = {"column": name, "category": category} | spread
        rows.append(begun | dict(zip(places, shown, strict=True)))
    return sorted(rows, key=lambda row: str(row["differs"]), reverse=True)


def _described(data: VectorData, coded: int, fewest: int) -> Iterator[tuple[str, str, Tensor]]:
    """Yield each column and its values, float64; for its last ``coded`` columns each category.

    Categories of fewer than ``fewest`` rows are left out.
    """
    plain = len(data.columns) - coded
    for position, name in enumerate(data.columns):
        values = data.values[:, position].cpu().double()
        if position < plain:
            yield name, "", values
            continue
        codes, counts = torch.unique(values[~values.isnan()], return_counts=True)
        codes, counts = codes[counts >= fewest], counts[counts >= fewest]
        for code in codes[counts.argsort(descending=True, stable=True)][:_MOST_CATEGORIES].tolist():
            # In memory a category may have no text.
            text = data.texts.get(code, f"{code:.15g}")
            yield name, text, torch.where(values.isnan(), values, values == code)


def _statistics(values: Tensor, clusters: Tensor, k: int) -> tuple[dict[str, object], Tensor]:
    """Return η² and the deviation; and the mean over all and each cluster, of shape (1 + k,)."""
    mean, counts = values.mean(), clusters.bincount(minlength=k)
    # Offsets for squares, since those of dates would cancel; values for means, so that 0 is 0.
    pairs = torch.stack([values, values - mean], dim=1)
    sums, offsets = sum_by_group(clusters, pairs, k).T
    # The offsets of equal values may be rounding errors.
    total = (
        float(pairs[:, 1].square().sum()) if len(values) and values.min() < values.max() else 0.0
    )
    between = float((offsets.square() / counts.clamp(min=1)).sum())
    spread: dict[str, object] = {
        "differs": f"{between / total if total else 0.0:.3f}",
        "deviation": _readable((total / max(1, len(values))) ** 0.5, False),
    }
    return spread, torch.cat([mean[None], sums / counts])


def _readable(mean: float, is_date: bool) -> str | float:
    """Return a mean with six digits, or as a date; empty if it is NaN."""
    if mean != mean:
        return ""
    return date_of(mean) if is_date else float(f"{mean:.6g}")
