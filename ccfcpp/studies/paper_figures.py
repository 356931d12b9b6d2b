"""Figures of scores, ours beside the papers', and of singular values."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import NullFormatter

from ccfcpp.reports.drawing import DrawnFigure, legend_above, new_figure, power
from ccfcpp.reports.labels import slug
from ccfcpp.reports.palette import line_style
from ccfcpp.studies.score_tables import ScoreTable
from ccfcpp.studies.tables import describe_seeds

_MOST_MARKED = 30
"""Largest number of values on an axis that get markers; longer axes are rounds."""
_SHIFT = 0.03
"""Horizontal distance of two systems' markers, as a share of the distance of two ticks."""


def draw_scores(table: ScoreTable, published: ScoreTable | None = None) -> list[DrawnFigure]:
    """Draw a figure for each panel (data set) of a score table: our values, and the paper's.

    If the two tables have no panel in common, the paper's panels get figures of their own.
    """
    drawn = [_draw_panel(table, panel, published) for panel in table.panels]
    if published is not None and not set(published.panels) & set(table.panels):
        drawn += [_draw_panel(published, panel, None, "the paper: ") for panel in published.panels]
    return drawn


def _draw_panel(
    table: ScoreTable, panel: str, published: ScoreTable | None, whose: str = ""
) -> DrawnFigure:
    places = table.places(panel)
    rows: list[dict[str, object]] = []
    # Markers are shifted sideways, so that error bars do not hide each other.
    apart = _SHIFT if any(score.deviation for score in table.scores.values()) else 0.0
    with new_figure() as (figure, axes):
        for number, system in enumerate(table.systems):
            known = {at: one for at in places if (one := table.get(panel, at, system))}
            if not known:
                continue
            theirs = {
                at: one.mean
                for at in places
                if published is not None and (one := published.get(panel, at, system))
            }
            shift = apart * (number - (len(table.systems) - 1) / 2)
            style = line_style(number) | ({"marker": ""} if len(places) > _MOST_MARKED else {})
            axes.errorbar(
                [places.index(at) + shift for at in known],
                [score.mean for score in known.values()],
                [score.deviation or 0 for score in known.values()],
                label=system,
                capsize=2,
                markersize=5,
                elinewidth=0.8,
                **style,
            )
            hollow = style | {"linestyle": "none", "markerfacecolor": "none", "markersize": 9}
            axes.plot([places.index(at) + shift for at in theirs], list(theirs.values()), **hollow)
            rows += [
                {
                    table.axis or "place": at,
                    "system": system,
                    table.measure: score.mean,
                    "deviation": score.deviation,
                    "the paper": theirs.get(at),
                }
                for at, score in known.items()
            ]
        step = -(-len(places) // 10)
        axes.set_xticks(range(0, len(places), step), places[::step])
        axes.set(xlabel=table.axis, ylabel=table.measure)
        legend_above(axes, columns=3)
    beside = ", hollow marks are the paper's" if any(row["the paper"] for row in rows) else ""
    by = f" by {table.axis}" if table.axis else ""
    caption = f"{table.measure}{by}; {describe_seeds(table.runs)}{beside}."
    return DrawnFigure(
        slug(f"{table.measure}-{whose}{panel}"), f"{whose}{panel}", caption, figure, rows
    )


def draw_spectra(title: str, curves: Mapping[str, Sequence[float]]) -> DrawnFigure:
    """Draw curves of singular values on a logarithmic scale.

    ``curves`` maps a curve's name to its singular values, positive and in descending order.
    """
    rows: list[dict[str, object]] = []
    with new_figure() as (figure, axes):
        for number, (name, values) in enumerate(curves.items()):
            style = line_style(number) | {"marker": ""}
            axes.plot(range(1, len(values) + 1), values, label=name, linewidth=1.8, **style)
            rows += [
                {"curve": name, "dimension": place, "singular value": value}
                for place, value in enumerate(values, start=1)
            ]
        axes.set(xlabel="dimension, by size", ylabel="singular value", yscale="log")
        axes.yaxis.set_major_formatter(power)
        # Only powers of ten have labels.
        axes.yaxis.set_minor_formatter(NullFormatter())
        legend_above(axes, columns=3)
    caption = "Singular values of the covariance of the representations, largest first."
    return DrawnFigure(slug(f"spectra-{title}"), title, caption, figure, rows)
