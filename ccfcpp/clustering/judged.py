"""What a summary tells people of a clustering without labels."""

from collections.abc import Mapping, Sequence
from typing import Any

MEASURES = {
    "silhouette": ("simplified silhouette", "from \N{MINUS SIGN}1 to 1, which is best"),
    "davies_bouldin": ("Davies-Bouldin", "0 is best"),
    "stability": ("stability between halves", "1 is best, 0.8 and more is good"),
}
"""Title and range by key of the summary."""
NOT_JUDGED = "left out: under differential privacy each sum would cost a part of the budget"
_NONE = "none: too few images or clusters"
_MOST_SIZES = 12


def judged_rows(summary: Mapping[str, Any]) -> dict[str, str]:
    """What is known without labels, by title; empty for another run, or of an earlier version."""
    if "clusters" not in summary:
        return {}
    rows = {}
    if sizes := summary.get("cluster_sizes"):
        rows[f"{summary.get('unit', 'image')}s in each cluster"] = _in_words(sizes)
    if summary.get("privacy", {}).get("level", "none") != "none":
        return rows | {"without labels": NOT_JUDGED}
    for key, (title, span) in MEASURES.items():
        if key in summary:
            value = summary[key]
            rows[title] = _NONE if value is None else f"{value:.4f} ({span})"
    return rows


def sizes_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """A row for each client with its images in each cluster; empty where that is not known."""
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
