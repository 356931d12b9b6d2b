"""Tables and lines about a clustering without labels, made of a run's summary."""

from collections.abc import Mapping, Sequence
from typing import Any

from ccfcpp.core.units import counted

MEASURES = {
    "silhouette": ("simplified silhouette", "from \N{MINUS SIGN}1 to 1, which is best"),
    "davies_bouldin": ("Davies-Bouldin", "0 is best"),
    "stability": ("stability between halves", "1 is best, 0.8 and more is good"),
}
"""Title and range by key of the summary."""
NOT_EVALUATED = "left out: under differential privacy each sum would cost a part of the budget"
_NONE = "none: too few images or clusters"
_MOST_SIZES = 12


def evaluation_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the measures without labels by title; empty for runs that have none."""
    if "clusters" not in summary:
        return {}
    rows = {"clusters": number} if (number := _fewer(summary)) else {}
    if (anchor := summary.get("nmi_of_pixels")) is not None:
        kappa = summary.get("kappa_of_pixels")  # Earlier versions do not have it.
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


def _fewer(summary: Mapping[str, Any]) -> str:
    """Return how many clusters there are if fewer than were asked for; else an empty text."""
    asked, found = summary.get("clusters", 0), summary.get("clusters_found")
    if found == 1 and summary.get("clusters_sought"):
        return f"1, where {summary['clusters_sought']} was asked for"
    return f"{found} of {asked}" if found is not None and found < asked else ""


def missing_clusters_warning(summary: Mapping[str, Any]) -> str:
    """Return a warning if there are fewer clusters than were asked for; else an empty text."""
    unit, number = summary.get("unit", "image"), _fewer(summary)
    why = f"{unit}s may be alike, or too few in a cluster for a client to tell of them"
    return f"fewer clusters have {unit}s than was asked for ({number}): {why}" if number else ""


def scores_caveat(summary: Mapping[str, Any]) -> str:
    """Explain over what scores are that mean little: one class, or fewer clusters than classes."""
    classes, found = summary.get("classes"), summary.get("clusters_found")
    if not classes or found is None or 1 < classes <= found:
        return ""
    of = "1 class" if classes == 1 else f"{classes} classes"
    return f" ({counted(found, 'cluster')}, {of})"


def sizes_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return a row for each client with its images in each cluster; empty if it is unknown."""
    names = {one["client"]: one["name"] for one in summary.get("participants", ())}
    return [
        {"client": names.get(number, f"client {number}")}
        | {str(cluster): str(count) for cluster, count in enumerate(counts)}
        for number, counts in enumerate(summary.get("client_cluster_sizes", ()))
    ]


def _in_words(sizes: Sequence[int]) -> str:
    if len(sizes) <= _MOST_SIZES:
        return ", ".join(f"{size:,}" for size in sizes)
    empty = sum(size == 0 for size in sizes)
    return f"{min(sizes):,} to {max(sizes):,}" + (f", {empty} of them empty" if empty else "")
