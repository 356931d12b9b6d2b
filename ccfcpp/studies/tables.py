"""Tables of studies: means over seeds, and rows as Markdown and LaTeX."""

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from ccfcpp.runs.paths import Json
from ccfcpp.studies.grids import Axes

T = TypeVar("T")
Text = Mapping[str, str]
"""A row of a table for people."""


def group_by_cell(results: Sequence[tuple[Axes, T]]) -> list[tuple[Axes, list[T]]]:
    """Group runs by their cell; runs of one cell are adjacent."""
    cells = itertools.groupby(results, key=lambda result: result[0])
    return [(axes, [own for _, own in runs]) for axes, runs in cells]


def cell_rows(results: Sequence[tuple[Axes, Json]], measures: Sequence[str]) -> list[Json]:
    """Return a row for each cell: its axes, and each measure's mean and deviation over the seeds.

    Measures are keys of the summaries.
    """
    return [{**axes, **_means(summaries, measures)} for axes, summaries in group_by_cell(results)]


def _means(summaries: Sequence[Json], measures: Sequence[str]) -> Json:
    row: Json = {"runs": len(summaries)}
    for measure in measures:
        known = [s[measure] for s in summaries if s.get(measure) is not None]
        mean, deviation = mean_and_deviation(known) if known else (None, None)
        row |= {measure: mean, f"{measure} deviation": deviation}
    return row


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and the sample deviation (n − 1); None as the deviation of one run."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def display(row: Json, measures: Sequence[str]) -> dict[str, str]:
    """Format a row: its axes, and measures with their deviations."""
    figures = {*measures, *(f"{measure} deviation" for measure in measures)}
    shown = {key: str(value) for key, value in row.items() if key not in figures}
    for measure in measures:
        mean, deviation = row[measure], row[f"{measure} deviation"]
        text = "" if mean is None else f"{mean:.4g}"
        shown[measure] = text if deviation is None else f"{text} ± {deviation:.2g}"
    return shown


def describe_seeds(runs: int) -> str:
    """Describe a table or a figure of cells with at most ``runs`` runs each."""
    return f"mean ± deviation over {runs} seeds" if runs > 1 else "one seed"


def format_number(value: object) -> str:
    """Format a number as papers print it."""
    if isinstance(value, float):
        return "∞" if value == math.inf else f"{value:g}"
    return str(value)


def axis_name(key: str) -> str:
    """Return the readable name of the axis with this dotted key."""
    return key.removesuffix(".kind").rpartition(".")[2].replace("_", " ")


# --- files --------------------------------------------------------------------------------------


def _columns(rows: Sequence[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def as_markdown(rows: Sequence[Text]) -> str:
    """Format rows of text as a Markdown table."""
    names = _columns(rows)
    lines = [names, ["---"] * len(names), *([row.get(name, "") for name in names] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def as_latex(caption: str, rows: Sequence[Text]) -> str:
    """Format rows as a LaTeX table in the style of the package ``booktabs``.

    The cells are LaTeX; caption and names of columns are text.
    """
    names = _columns(rows)
    lines = [[row.get(name, "") for name in names] for row in rows]
    head = " & ".join(map(escape_latex, names))
    body = "".join(f"{' & '.join(cells)} \\\\\n" for cells in lines)
    columns = "l" + "r" * (len(names) - 1)
    return (
        f"\\begin{{table}}\n\\centering\n\\caption{{{escape_latex(caption)}}}\n"
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head} \\\\\n\\midrule\n{body}"
        "\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )


_IN_LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "∞": r"$\infty$", "<": r"$<$", ">": r"$>$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
_SIGNS = re.compile("|".join(map(re.escape, _IN_LATEX)))


def escape_latex(text: str) -> str:
    """Escape a text for LaTeX."""
    return _SIGNS.sub(lambda found: _IN_LATEX[found[0]], text)
