"""Figures of a study: scores against each varied setting (axis), and costs."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.reports.contents import Contents
from ccfcpp.reports.drawing import DrawnFigure, legend_above, new_figure
from ccfcpp.reports.drawing import axis_number as in_full
from ccfcpp.reports.labels import slug
from ccfcpp.reports.palette import line_style
from ccfcpp.reports.run_reader import title_of_system
from ccfcpp.studies.comparison import (
    DEGREES,
    heeds_partition,
    with_costs,
    with_presence_scores,
)
from ccfcpp.studies.grids import Axes
from ccfcpp.studies.paper_figures import draw_scores
from ccfcpp.studies.results import Result, images
from ccfcpp.studies.score_tables import ANY, ScoreTable, mean_scores
from ccfcpp.studies.tables import axis_name, describe_seeds, format_number, group_by_cell

_NO_LABEL = ("method", "dataset", "decorrelation.kind")
"""Axes that are left out of names, since systems and data sets are named by them already."""
_FIRST = ("p", "classes_per_client", "alpha", "partition.alpha")
"""Axes whose figures come first."""
_FAR = 100
"""Ratio of largest to smallest cost from which on only powers of ten have tick labels."""


@dataclass(frozen=True)
class StudyCells:
    """The finished runs of a study.

    Attributes:
        results: Runs, each with the settings that distinguish its cell (combination of settings).
        scores: Maps each score's key in ``summary.json`` to its title.
        published: Maps a cell and a score's key to the papers' value; None if there is none.
    """

    results: Sequence[tuple[Axes, Result]]
    scores: Mapping[str, str]
    published: Callable[[Axes, str], float | None] = lambda axes, key: None

    def value(self, result: Result, key: str) -> float | None:
        """Return the score of a run with this key; None if it has none."""
        value: float | None = with_presence_scores(result.summary).get(key)
        return value

    @cached_property
    def _values(self) -> dict[str, set[Any]]:
        """Values of each setting that distinguishes cells."""
        keys = dict.fromkeys(key for axes, _ in self.results for key in (*_FIRST, *axes))
        return {key: {axes[key] for axes, _ in self.results if key in axes} for key in keys}

    @cached_property
    def numbers(self) -> dict[str, list[float]]:
        """Values, ascending, of each numeric setting that differs between runs (numeric axis)."""
        return {
            key: sorted(own, key=float)
            for key, own in self._values.items()
            if len(own) > 1 and all(map(_is_number, own))
        }

    @property
    def systems(self) -> list[str]:
        """Names of the compared systems, in the order of the runs."""
        return list(dict.fromkeys(self.system(*run) for run in self.results))

    def images_of(self, result: Result) -> list[str]:
        """Return the name of a run's data set in a list; empty if all runs have the same one."""
        return [images(result)] if len({images(own) for _, own in self.results}) > 1 else []

    def system(self, axes: Axes, result: Result) -> str:
        """Return a compared system's name: its method, and its settings on no numeric axis."""
        others = [
            f"{axis_name(key)} {format_number(value)}"
            for key, value in axes.items()
            if key not in _NO_LABEL and not all(map(_is_number, self._values[key]))
        ]
        return ", ".join([title_of_system(result.config), *others])


def _is_number(value: object) -> bool:
    return value == "inf" or (isinstance(value, int | float) and not isinstance(value, bool))


def _capitalize(heading: str) -> str:
    return heading[0].upper() + heading[1:]


def study_figures(cells: StudyCells) -> Contents:
    """Draw all figures of a study, in sections: scores by each axis, and costs."""
    contents = Contents()
    for axis in cells.numbers:
        drawn = [row for score in cells.scores if (row := _draw_by_axis(cells, axis, score))]
        if all(len(row) == 1 for row in drawn):
            drawn = [[figure for row in drawn for figure in row]]
        if any(drawn):
            contents.sections[f"Scores by {axis_name(axis)}"] = drawn
    if not cells.numbers:
        contents.sections["Scores"] = [[_draw_dots(cells, score) for score in cells.scores]]
    costs = {"MB of a client": ("mb_up", "mb_down"), "seconds of all": ("seconds",)}
    first = next(iter(cells.scores))
    contents.sections["Costs"] = [[_draw_costs(cells, first, *cost) for cost in costs.items()]]
    return contents


def _draw_by_axis(cells: StudyCells, axis: str, score: str) -> list[DrawnFigure]:
    """Draw a score against one axis, a figure for each combination of the other axes' values."""
    others = {key: values for key, values in cells.numbers.items() if key != axis}
    drawn = []
    for place in itertools.product(*others.values()):
        fixed = dict(zip(others, place, strict=True))
        selected = [
            (axes, result)
            for axes, result in cells.results
            if all(axes.get(key, value) == value for key, value in fixed.items())
            and all(_has_place(axes, result, key) for key in cells.numbers)
        ]
        selected.sort(key=lambda run: float(run[0].get(axis, "-inf")))
        beside = [f"{axis_name(key)} = {format_number(value)}" for key, value in fixed.items()]
        ours = _mean_table(cells, selected, axis, score, beside)
        theirs = _mean_table(cells, selected, axis, score, beside, published=True)
        for panel in [panel for panel in ours.panels if len(ours.places(panel)) > 1]:
            (figure,) = draw_scores(ours.of(panel), theirs.of(panel) if theirs.scores else None)
            heading = f"{cells.scores[score]} by {axis_name(axis)}" + (
                f": {panel}" if panel else ""
            )
            drawn.append(_make_figure(heading, figure.caption, figure.figure, figure.rows))
    return drawn


def _has_place(axes: Axes, result: Result, axis: str) -> bool:
    """Return whether a run is in figures against an axis.

    A run without it, such as p for a centralised system, is at all values, unless what it lacks is
    the degree of another kind of partition than its own.
    """
    config = result.config
    tied = isinstance(config, ClusterConfig) and heeds_partition(config)
    return axis in axes or axis not in DEGREES or not tied


def _make_figure(
    heading: str, caption: str, figure: Figure, rows: Sequence[Mapping[str, object]]
) -> DrawnFigure:
    return DrawnFigure(slug(heading), _capitalize(heading), _capitalize(caption), figure, rows)


def _mean_table(
    cells: StudyCells,
    runs: Iterable[tuple[Axes, Result]],
    axis: str,
    score: str,
    beside: Sequence[str] = (),
    published: bool = False,
) -> ScoreTable:
    """Return mean scores over seeds, by data set, value on the axis and system."""
    values = []
    for axes, result in runs:
        panel = ", ".join([*cells.images_of(result), *beside])
        place = panel, format_number(axes.get(axis, ANY)), cells.system(axes, result)
        value = cells.published(axes, score) if published else cells.value(result, score)
        values.append((place, value))
    return ScoreTable(cells.scores[score], axis_name(axis), mean_scores(values), cells.systems)


def _draw_dots(cells: StudyCells, score: str) -> DrawnFigure:
    """Draw each system's mean score as a dot with error bars, for studies without numeric axes."""
    title = cells.scores[score]
    table = _mean_table(cells, cells.results, "", score)
    by_name = {
        ", ".join(dict.fromkeys((system, panel))) if len(table.panels) > 1 else system: one
        for (panel, _, system), one in table.scores.items()
    }
    with new_figure(1.1 + 0.3 * max(2, len(by_name))) as (figure, axes):
        for number, one in enumerate(by_name.values()):
            style = line_style(number)
            axes.errorbar(
                one.mean, number, xerr=one.deviation or 0, capsize=2, markersize=6, **style
            )
        axes.set_yticks(range(len(by_name)), [*by_name])
        axes.set(xlabel=title, ylim=(len(by_name) - 0.5, -0.5))
        axes.xaxis.set_major_formatter(in_full)
    rows = [
        {"system": n, title: one.mean, "deviation": one.deviation} for n, one in by_name.items()
    ]
    caption = f"{title}; {describe_seeds(table.runs)}."
    return _make_figure(title, caption, figure, rows)


def _draw_costs(cells: StudyCells, score: str, name: str, keys: Sequence[str]) -> DrawnFigure:
    """Draw a scatter plot of a score against a cost (sum of ``keys``), a point for each cell."""
    of_cells = group_by_cell(cells.results)
    points: dict[str, list[tuple[float, float]]] = {}
    rows: list[dict[str, object]] = []
    for axes_of, runs in of_cells:
        if scores := [v for result in runs if (v := cells.value(result, score)) is not None]:
            costs = [with_costs(result.summary) for result in runs]
            price, mean = fmean(sum(own[key] for key in keys) for own in costs), fmean(scores)
            system = cells.system(axes_of, runs[0])
            points.setdefault(system, []).append((price, mean))
            rows.append({"system": system} | axes_of | {name: price, cells.scores[score]: mean})
    with new_figure() as (figure, axes):
        for number, (system, own) in enumerate(points.items()):
            style = line_style(number) | {"linestyle": "none"}
            axes.plot(*zip(*own, strict=True), label=system, markersize=6, alpha=0.8, **style)
        axes.set(xlabel=name, ylabel=cells.scores[score], xscale="log")
        prices = [one for pairs in points.values() for one, _ in pairs]
        near = max(prices) < _FAR * min(prices)
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if near else (1.0,)))
        axes.xaxis.set_major_formatter(in_full)
        axes.xaxis.set_minor_formatter(NullFormatter())
        legend_above(axes, columns=3)
    heading = f"{cells.scores[score]} by {name}"
    means = ", means over its seeds" if max(len(runs) for _, runs in of_cells) > 1 else ""
    caption = f"{heading}, in the whole run: a mark for each cell of the study{means}."
    return _make_figure(heading, caption, figure, rows)
