"""Figures of scores with their deviations beside the papers', and of singular values."""

from collections.abc import Mapping, Sequence

from matplotlib.ticker import NullFormatter

from ccfcpp.papers.reproduction.scores import Score, ScoreTable
from ccfcpp.report.drawing import Drawn, legend_above, paper, power
from ccfcpp.report.palette import line_style
from ccfcpp.report.runs import slug

_MOST_MARKED = 30
"""Largest number of places on an axis that are marked; more are rounds."""
_SHIFT = 0.03
"""Distance of the marks of two systems, as a share of that of two places."""


def draw_scores(table: ScoreTable, published: ScoreTable | None = None) -> list[Drawn]:
    """Draw a figure for each panel: our values, and the paper's for the same images.

    The paper's values for other images have figures of their own where it has none of ours.

    Args:
        table: Our values.
        published: The paper's.
    """
    drawn = [_draw_panel(table, panel, published) for panel in table.panels]
    if published is not None and not set(published.panels) & set(table.panels):
        drawn += [_draw_panel(published, panel, None, "the paper: ") for panel in published.panels]
    return drawn


def _draw_panel(
    table: ScoreTable, panel: str, published: ScoreTable | None, whose: str = ""
) -> Drawn:
    places = table.places(panel)
    rows: list[dict[str, object]] = []
    deviates = any(score.deviation for score in table.scores.values())
    middle = (len(table.systems) - 1) / 2

    def shift(number: int) -> float:
        """Move a system's marks, so that deviations do not hide each other."""
        return _SHIFT * (number - middle) if deviates else 0.0

    with paper() as (figure, axes):
        for number, system in enumerate(table.systems):
            look = line_style(number)
            own = {place: table.get(panel, place, system) for place in places}
            known = {place: score for place, score in own.items() if score is not None}
            if not known:
                continue
            at = [places.index(place) + shift(number) for place in known]
            means = [score.mean for score in known.values()]
            if len(places) > _MOST_MARKED:
                look |= {"marker": ""}
            axes.errorbar(
                at,
                means,
                [score.deviation or 0 for score in known.values()],
                label=system,
                capsize=2,
                markersize=5,
                elinewidth=0.8,
                **look,
            )
            theirs = _published(published, panel, places, system)
            hollow = look | {"linestyle": "none", "markerfacecolor": "none", "markersize": 9}
            axes.plot(
                [places.index(place) + shift(number) for place in theirs],
                list(theirs.values()),
                **hollow,
            )
            rows += [
                _row(table, place, system, score, theirs.get(place))
                for place, score in known.items()
            ]
        step = -(-len(places) // 10)
        axes.set_xticks(range(0, len(places), step), places[::step])
        axes.set(xlabel=table.axis, ylabel=table.measure)
        legend_above(axes, columns=3)
    beside = ", hollow marks are the paper's" if any(row["the paper"] for row in rows) else ""
    by = f" by {table.axis}" if table.axis else ""
    caption = f"{table.measure}{by}; means and deviations over seeds{beside}."
    name = slug(f"{table.measure}-{whose}{panel}")
    return Drawn(name, f"{whose}{panel}", caption, figure, rows)


def _published(
    published: ScoreTable | None, panel: str, places: Sequence[str], system: str
) -> dict[str, float]:
    if published is None:
        return {}
    found = {place: published.get(panel, place, system) for place in places}
    return {place: score.mean for place, score in found.items() if score is not None}


def _row(
    table: ScoreTable, place: str, system: str, score: Score, published: float | None
) -> dict[str, object]:
    return {
        table.axis or "place": place,
        "system": system,
        table.measure: score.mean,
        "deviation": score.deviation,
        "the paper": published,
    }


def draw_spectra(title: str, curves: Mapping[str, Sequence[float]]) -> Drawn:
    """Draw singular values in descending order, on a logarithmic scale.

    Args:
        title: The figure's title.
        curves: Singular values by the name of their line, all above 0.
    """
    rows: list[dict[str, object]] = []
    with paper() as (figure, axes):
        for number, (name, values) in enumerate(curves.items()):
            look = line_style(number) | {"marker": ""}
            axes.plot(range(1, len(values) + 1), values, label=name, linewidth=1.8, **look)
            rows += [
                {"curve": name, "dimension": place, "singular value": value}
                for place, value in enumerate(values, start=1)
            ]
        axes.set(xlabel="dimension, by size", ylabel="singular value", yscale="log")
        axes.yaxis.set_major_formatter(power)
        # What lies between powers of ten is not named.
        axes.yaxis.set_minor_formatter(NullFormatter())
        legend_above(axes, columns=3)
    caption = "Singular values of the covariance of the representations, largest first."
    return Drawn(slug(f"spectra-{title}"), title, caption, figure, rows)
