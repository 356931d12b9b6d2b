"""Table of a classification study: a row for each combination of settings (cell) of its grid."""

from collections.abc import Sequence
from dataclasses import dataclass

from ccfcpp.core.config import RunConfig
from ccfcpp.core.unused_settings import needs_of
from ccfcpp.runs.paths import Json
from ccfcpp.studies import significance
from ccfcpp.studies.comparison import is_condition
from ccfcpp.studies.grids import Axes
from ccfcpp.studies.tables import cell_rows, describe_seeds, display, group_by_cell


@dataclass(frozen=True)
class ClassificationTable:
    """Table of a classification study: rows of numbers, the same as text, and a caption."""

    rows: list[Json]
    shown: list[dict[str, str]]
    caption: str


def heeded_axes(config: RunConfig, cell: Axes) -> Axes:
    """Return the varied settings of a cell (combination of settings) that affect its run."""
    return {key: own for key, own in cell.items() if needs_of(config, key) is None}


def tabulate(results: Sequence[tuple[Axes, Json]]) -> ClassificationTable:
    """Tabulate the finished runs of a classification study.

    ``results`` has each run's axes (distinguishing settings) and summary. Among cells with equal
    numeric settings, such as alpha, and conditions, such as the data set, each is tested against
    the best one.
    """
    compared = score_keys([summary for _, summary in results])
    measures = [*compared, "tail_share", "seconds"]
    rows = cell_rows(results, measures)
    shown = [display(row, measures) for row in rows]
    cells = group_by_cell(results)
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, (axes, _) in enumerate(cells):
        place = tuple(
            (key, own)
            for key, own in axes.items()
            if isinstance(own, int | float) or is_condition(key)
        )
        groups.setdefault(place, []).append(number)
    tested = False
    for score in compared:
        for group in groups.values():
            by_seed = {number: significance.by_seed(cells[number][1], score) for number in group}
            best = max(group, key=lambda number: rows[number][score] or 0.0)
            for number, p in significance.corrected_p_values(by_seed, best).items():
                tested = True
                rows[number][f"{score} p-value"] = p
                shown[number][score] += significance.MARK * (p < significance.LEVEL)
    caption = describe_seeds([row["runs"] for row in rows]).capitalize()
    if tested:
        caption += f"; {significance.caption('the best with the same numbers and conditions')}"
    return ClassificationTable(rows, shown, caption)


def score_keys(summaries: Sequence[Json]) -> list[str]:
    """Return the keys of the compared scores: accuracy, overall and by domain; effective rank."""
    of_domains = [s for s in summaries if s["partition"] == "domain"]
    domains = dict.fromkeys(key for s in of_domains for key in s if key.startswith("accuracy "))
    return ["accuracy", *domains, "effective_rank"]
