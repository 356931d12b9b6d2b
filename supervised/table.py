"""Table of a study of classification, with a row for each cell of its grid."""

from collections.abc import Sequence

from ccfcpp.runs.study import Axes, Row, cell_rows, display


def tabulate(results: Sequence[tuple[Axes, Row]]) -> tuple[list[Row], list[dict[str, str]]]:
    """Make rows of numbers, and the same rows as text."""
    measures = [*scores([summary for _, summary in results]), "tail_share", "seconds"]
    rows = cell_rows(results, measures)
    return rows, [display(row, measures) for row in rows]


def scores(summaries: Sequence[Row]) -> list[str]:
    """Keys of the scores of runs: accuracy, also of each domain, and effective rank."""
    of_domains = [s for s in summaries if s["partition"] == "domain"]
    domains = dict.fromkeys(key for s in of_domains for key in s if key.startswith("accuracy "))
    return ["accuracy", *domains, "effective_rank"]
