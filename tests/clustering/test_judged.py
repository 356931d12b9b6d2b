"""What is said where there are fewer clusters than was asked for, and of scores that say little."""

from typing import Any

import pytest

from ccfcpp.clustering.evaluation.summary_text import (
    evaluation_rows,
    missing_clusters_warning,
    scores_caveat,
)


def summary(clusters: int, found: int | None, classes: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "clusters": clusters,
        "clusters_found": found,
        "classes": classes,
        "unit": "vector",
    } | more


def test_fewer_clusters_than_were_asked_for_are_said() -> None:
    few = summary(5, 3)
    assert evaluation_rows(few)["clusters"] == "3 of 5"
    assert missing_clusters_warning(few).startswith(
        "fewer clusters have vectors than was asked for (3 of 5): "
    )
    one = summary(1, 1, clusters_sought="auto")
    assert evaluation_rows(one)["clusters"] == "1, where auto was asked for"
    assert "auto" in missing_clusters_warning(one)


@pytest.mark.parametrize(
    "whole", [summary(5, 5), summary(1, 1), summary(4, 4, clusters_sought="2-9"), summary(5, None)]
)
def test_nothing_is_said_where_all_are_there_or_it_is_not_known(whole: dict[str, Any]) -> None:
    assert missing_clusters_warning(whole) == ""
    assert "clusters" not in evaluation_rows(whole)


@pytest.mark.parametrize(
    ("clusters", "classes", "said"),
    [
        (1, 1, " (1 cluster, 1 class)"),
        (3, 1, " (3 clusters, 1 class)"),
        (3, 5, " (3 clusters, 5 classes)"),
        (5, 5, ""),
        (9, 5, ""),
        (3, 0, ""),
    ],
)
def test_scores_over_too_little_say_over_what(clusters: int, classes: int, said: str) -> None:
    assert scores_caveat(summary(clusters, clusters, classes)) == said
