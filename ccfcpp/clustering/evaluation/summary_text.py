"""Tables and sentences about the evaluation without labels, from a run's summary."""

from collections.abc import Mapping, Sequence
from typing import Any

from ccfcpp.core.units import format_count

MEASURES = {
    "silhouette": ("simplified silhouette", "from \N{MINUS SIGN}1 to 1, which is best"),
    "davies_bouldin": ("Davies-Bouldin", "0 is best"),
    "stability": ("stability between halves", "1 is best, 0.8 and more is good"),
}
"""Title and range of each metric, by its key in the summary."""
NOT_EVALUATED = "left out: under differential privacy each sum would cost a part of the budget"
_NONE = "none: too few images or clusters"
_MOST_SIZES = 12


def evaluation_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return table rows on a run's clusters, as texts by title; {} if the run has no clusters."""
    if "clusters" not in summary:
        return {}
    rows = {"clusters": number} if (number := _missing_text(summary)) else {}
    if (anchor := summary.get("nmi_of_pixels")) is not None:
        kappa = summary.get("kappa_of_pixels")  # Runs of earlier versions lack it.
        scores = f"NMI {anchor:.4f}" + ("" if kappa is None else f", Kappa {kappa:.4f}")
        rows["k-means on the pixels"] = f"{scores}, with all images in one place"
    if sizes := summary.get("cluster_sizes"):
        rows[f"{summary.get('unit', 'image')}s in each cluster"] = _in_words(sizes)
    if summary.get("privacy", {}).get("level", "none") != "none":
        return rows | {"without labels": NOT_EVALUATED}
    for key, (title, span) in MEASURES.items():
        if key in summary:
            value = summary[key]
            rows[title] = _NONE if value is None else f"{value:.4f} ({span})"
    return rows


def _missing_text(summary: Mapping[str, Any]) -> str:
    """Return a phrase such as "3 of 5" if fewer clusters have images than asked for; else ""."""
    asked, found = summary.get("clusters", 0), summary.get("clusters_found")
    if found == 1 and summary.get("clusters_sought"):
        return f"1, where {summary['clusters_sought']} was asked for"
    return f"{found} of {asked}" if found is not None and found < asked else ""


def missing_clusters_warning(summary: Mapping[str, Any]) -> str:
    """Return a warning if fewer clusters have images than were asked for; else ""."""
    unit, number = summary.get("unit", "image"), _missing_text(summary)
    why = f"{unit}s may be alike, or too few in a cluster for a client to tell of them"
    return f"fewer clusters have {unit}s than was asked for ({number}): {why}" if number else ""


def scores_caveat(summary: Mapping[str, Any]) -> str:
    """Return a note if scores mean little: with one class, or fewer clusters than classes."""
    classes, clusters = summary.get("classes"), summary.get("clusters_found")
    if not classes or clusters is None or 1 < classes <= clusters:
        return ""
    of = "1 class" if classes == 1 else f"{classes} classes"
    return f" ({format_count(clusters, 'cluster')}, {of})"


def sizes_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a row per client: its name, its number of images in each cluster; [] if unknown."""
    sizes = summary.get("client_cluster_sizes", ())
    # Runs of earlier versions lack the names.
    names = summary.get("client_names") or [f"client {number}" for number in range(len(sizes))]
    return [
        {"client": name} | {str(cluster): str(count) for cluster, count in enumerate(counts)}
        for name, counts in zip(names, sizes, strict=True)
    ]


def _in_words(sizes: Sequence[int]) -> str:
    if len(sizes) <= _MOST_SIZES:
        return ", ".join(f"{size:,}" for size in sizes)
    empty = sum(size == 0 for size in sizes)
    return f"{min(sizes):,} to {max(sizes):,}" + (f", {empty} of them empty" if empty else "")
