"""Results of the finished runs of a paper's table or figure (item): tables, claims, figures."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from ccfcpp.core.metrics import above_rounding
from ccfcpp.reports import class_figures, representations
from ccfcpp.reports.drawing import DrawnFigure
from ccfcpp.reports.labels import slug
from ccfcpp.reports.run_reader import RecordedRun
from ccfcpp.reports.statistics import CannotDrawError
from ccfcpp.studies.paper_figures import draw_scores, draw_spectra
from ccfcpp.studies.reproduction.claims import Claim, select_shared
from ccfcpp.studies.reproduction.measures import measure_runs, read_spectra
from ccfcpp.studies.reproduction.paper_items import (
    ClaimSpec,
    Item,
    PictureSpec,
    SpectraSpec,
    TableSpec,
)
from ccfcpp.studies.results import Result, group_by_label, label, select_lowest_seed
from ccfcpp.studies.score_tables import (
    ANY,
    Place,
    ScoreTable,
    divide_by_system,
    mean_scores,
    published_scores,
)

_PICTURES: Mapping[str, Callable[[RecordedRun], DrawnFigure]] = {
    "holdings": class_figures.client_classes,
    "covariance": representations.draw_covariance,
    "plane": representations.by_class,
}


@dataclass(frozen=True)
class Findings:
    """Results of a reproduced table or figure of a paper: score tables, claims and figures.

    ``tables`` has pairs of our table and the paper's (None if it is not published), ``left_out``
    the reason for each figure that could not be drawn.
    """

    tables: Sequence[tuple[ScoreTable, ScoreTable | None]]
    claims: Sequence[Claim]
    figures: Sequence[DrawnFigure]
    left_out: Sequence[str] = ()


def compute_findings(item: Item, results: Sequence[Result]) -> Findings:
    """Make the tables and figures of an item (one of a paper's), and check the paper's claims."""
    tables = {
        name: (_table(item, spec, results), _published(spec)) for name, spec in item.tables.items()
    }
    left_out: list[str] = []
    figures = [drawn for spec in item.spectra for drawn in _spectra(item, spec, results)]
    for spec in item.pictures:
        figures += _pictures(item, spec, results, left_out)
    for name, pair in tables.items():
        figures += draw_scores(*pair) if item.tables[name].drawn else []
    return Findings(
        [pair for name, pair in tables.items() if item.tables[name].tabulated],
        [one for spec in item.claims for one in _claims(item, spec, results)],
        figures,
        left_out,
    )


def _table(item: Item, spec: TableSpec, results: Sequence[Result]) -> ScoreTable:
    def place(result: Result, facts: Mapping[str, str]) -> Place:
        system = label(spec.system, result, facts)
        at = ANY if system in spec.anywhere else label(spec.place, result, facts)
        return label(spec.panel or item.panels, result, facts), at, system

    readings = measure_runs(results, spec.measured)
    scores = mean_scores((place(result, facts), value) for result, facts, value in readings)
    if spec.over:
        scores = divide_by_system(scores, spec.over)
    table = ScoreTable(spec.title, spec.axis, scores)
    if spec.last:
        last = table.places(table.panels[0])[-1]
        return replace(table, scores={at: one for at, one in scores.items() if at[1] == last})
    return table


def _published(spec: TableSpec) -> ScoreTable | None:
    if not spec.published:
        return None
    scores = published_scores(spec.published)
    if spec.over:
        scores = divide_by_system(scores, spec.over)
    return ScoreTable(spec.title, spec.axis, scores)


def _claims(item: Item, spec: ClaimSpec, results: Sequence[Result]) -> list[Claim]:
    table = item.tables[spec.table or next(iter(item.tables))]
    published = _published(table)
    claims = []
    for group in (group_by_label(results, spec.each) if spec.each else {"": results}).values():
        ours = spec.view(_table(item, table, group).means)
        paper = spec.count(select_shared(spec.view(published.means), ours)) if published else None
        claims.append(Claim(label(spec.say, group[0]), *spec.count(ours), paper, spec.stated))
    return claims


def _spectra(item: Item, spec: SpectraSpec, results: Sequence[Result]) -> list[DrawnFigure]:
    """Draw figures of singular values; of several runs with the same label, the first is drawn."""
    # Global and local model in one figure come from the same run.
    chosen = select_lowest_seed(results) if spec.of == "both" else results
    figures: dict[str, dict[str, list[float]]] = {}
    for result, facts, values in measure_runs(chosen, partial(read_spectra, spec.of)):
        lines = figures.setdefault(label(spec.title or item.panels, result, facts), {})
        name = label(spec.line, result, facts)
        if values is not None and name not in lines:
            lines[name] = above_rounding(values).tolist()
    return [draw_spectra(title, lines) for title, lines in figures.items()]


def _pictures(
    item: Item, spec: PictureSpec, results: Sequence[Result], left_out: list[str]
) -> list[DrawnFigure]:
    """Draw the figures of ``spec``; append a line to ``left_out`` for each that cannot be drawn."""
    chosen = [
        result
        for result in select_lowest_seed(results)
        if all(result.settings[key] in values for key, values in spec.only.items())
    ]
    drawn = []
    for title, group in group_by_label(chosen, spec.title or item.panels).items():
        suffix = slug(title.replace("+", "p"))
        try:
            if spec.show == "correlations":
                figures = _correlations(spec, group)
            else:
                figures = [_PICTURES[spec.show](result.recorded) for result in group]
        except CannotDrawError as error:
            left_out.append(f"{title}: {error}")
            continue
        drawn += [
            replace(figure, name=f"{figure.name}-{suffix}", title=f"{figure.title}: {title}")
            for figure in figures
        ]
    return drawn


def _correlations(spec: PictureSpec, group: Sequence[Result]) -> list[DrawnFigure]:
    """Draw histograms of correlations between representations' dimensions, a line for each run."""
    gathered = []
    for result in group:
        run = replace(result.recorded, label=label(spec.line, result))
        with suppress(CannotDrawError):
            gathered.append((run, representations.pairwise_correlations(run)))
    return representations.draw_correlations(gathered) if gathered else []
