"""Tables of studies: means over seeds, and rows as Markdown and LaTeX."""

import itertools
import math
import re
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from ccfcpp.runs.paths import Json
from ccfcpp.studies.grids import Axes

T = TypeVar("T")
Text = Mapping[str, str]
"""A row of a table: text by column."""


def group_by_cell(results: Sequence[tuple[Axes, T]]) -> list[tuple[Axes, list[T]]]:
    """Group adjacent runs with equal axes (distinguishing settings); a group is a cell."""
    cells = itertools.groupby(results, key=lambda result: result[0])
    return [(axes, [own for _, own in runs]) for axes, runs in cells]


def cell_rows(results: Sequence[tuple[Axes, Json]], measures: Sequence[str]) -> list[Json]:
    """Return a row for each cell: its settings, and each measure's mean and deviation over seeds.

    ``results`` has each run's axes and ``summary.json``; ``measures`` are keys of the latter.
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
    """Return the mean, and the sample standard deviation (n − 1); None if there is one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def display(row: Json, measures: Sequence[str]) -> dict[str, str]:
    """Format a row of ``cell_rows`` as text: its settings, and each measure as mean ± deviation."""
    numbers = {*measures, *(f"{measure} deviation" for measure in measures)}
    shown = {key: str(value) for key, value in row.items() if key not in numbers}
    for measure in measures:
        mean, deviation = row[measure], row[f"{measure} deviation"]
        text = "" if mean is None else f"{mean:.4g}"
        shown[measure] = text if deviation is None else f"{text} ± {deviation:.2g}"
    return shown


def describe_seeds(runs: Collection[int]) -> str:
    """Describe over how many seeds scores are averaged, for a caption; ``runs``: of each score."""
    least, most = min(runs, default=1), max(runs, default=1)
    if most == 1:
        return "one seed"
    return f"mean ± deviation over {most if least == most else f'{least} to {most}'} seeds"


def format_number(value: object) -> str:
    """Format a number without trailing zeros, infinity as ∞; other values by ``str``."""
    if isinstance(value, float):
        return "∞" if value == math.inf else f"{value:g}"
    return str(value)


def axis_name(key: str) -> str:
    """Return the readable name of a setting, such as ``sample fraction``, from its dotted key."""
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
    """Format rows as a LaTeX table for the package ``booktabs``.

    Values of rows are LaTeX already; the caption and the column names are escaped here.
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


_ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "∞": r"$\infty$", "<": r"$<$", ">": r"$>$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
_SPECIAL = re.compile("|".join(map(re.escape, _ESCAPES)))


def escape_latex(text: str) -> str:
    """Escape LaTeX's special characters in a text."""
    return _SPECIAL.sub(lambda match: _ESCAPES[match[0]], text)
