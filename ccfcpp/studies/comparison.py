"""Comparisons of clustering methods: their runs and tables."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ccfcpp.clustering.config import ClusterConfig, ClusterDataConfig
from ccfcpp.clustering.evaluation.summary_text import MEASURES, missing_clusters_warning
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import ClassesPartition
from ccfcpp.core.config_layers import values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import format_count
from ccfcpp.core.unused_settings import needs_of
from ccfcpp.data.registry import DATASETS
from ccfcpp.runs.paths import Json
from ccfcpp.studies import significance
from ccfcpp.studies.grids import Axes, PlannedRun, StudySpec
from ccfcpp.studies.score_tables import published_score
from ccfcpp.studies.tables import (
    as_latex,
    as_markdown,
    axis_name,
    cell_rows,
    describe_seeds,
    escape_latex,
    format_number,
    group_by_cell,
)

SCORES = {"nmi": "NMI", "kappa": "Kappa", "ari": "ARI", "accuracy": "accuracy"}
"""Scores against the true classes, if the data have labels, with titles."""
JUDGED = {key: title for key, (title, _) in MEASURES.items()}
"""Scores without labels, with titles; lower Davies-Bouldin is better."""
_PUBLISHED = ("nmi", "kappa")
_BESIDE_PUBLISHED = {"nmi_geometric": "NMI by the geometric mean"}
"""NMI as the CCFC++ paper cites it; its authors' code has ``nmi``, by the arithmetic mean."""
_BY_PRESENCE = {
    f"{score}_{who}": f"{title} of {who} clients"
    for who in ("connected", "absent")
    for score, title in (("nmi", "NMI"), ("kappa", "Kappa"))
}
DEGREES = ("p", "classes_per_client", "alpha")
"""Settings for the degree of heterogeneity between clients: the columns of score tables."""
_COSTS = {
    "communication_rounds": ("rounds", "{:.4g}"),
    "mb_up": ("MB up", "{:,.3f}"),
    "mb_down": ("MB down", "{:,.3f}"),
    "seconds": ("seconds", "{:,.1f}"),
    "refused_updates": ("refused", "{:.4g}"),
}
COSTS_TITLE = "Cost of a run: MB of each client, seconds of all"
_CONDITIONS = ("study", "dataset", "data", "partition", "availability", "attack", "clusters")
"""Settings that change the problem: runs that differ in them are not compared."""
_RATES = ("disconnection_rate", "dropout_rate", "sample_fraction")
"""Keys of the section ``availability``, which tables name without the section."""
_Degree = tuple[str, float | str] | None
"""Name and value of one of ``DEGREES``: a column."""
_UNHEEDED = object()
"""Value of a setting without effect; None is a value, such as all images."""
_Place = tuple[str, tuple[object, ...]]
"""Row of a score table: a method, and its values of all settings but the degree."""


def plan_comparison(spec: StudySpec) -> list[PlannedRun[ClusterConfig]]:
    """Plan one run for each method, combination of the other axes' values, and seed.

    Runs that would be equal are planned once: a centralised method does not depend on the partition
    (if no client is absent and no image is left out), nor a method on a setting without effect.

    Raises:
        UsageError: A value is not allowed.
    """
    return spec.plan_runs(ClusterConfig, "cluster", _own_axes)


def _own_axes(config: ClusterConfig, cell: Axes) -> Axes:
    """Return the settings that distinguish a run's cell (combination of settings) from others.

    ``cell`` has the varied settings by dotted key; the result leaves out those without effect, and
    the prefixes ``availability.`` and, for the degree of heterogeneity, ``partition.``.
    """
    own: Axes = {"method": config.method}
    if heeds_partition(config):
        own |= config.partition.degree
    values = values_of(config)
    for key in cell:
        name = key.removeprefix("availability.")
        known = name == "method" or name.removeprefix("partition.") in DEGREES
        if not known and needs_of(config, key) is None:
            own[name] = values[key]
    return own


def heeds_partition(config: ClusterConfig) -> bool:
    """Return whether the partition changes a run."""
    # If clients are absent, the partition determines which images are missing.
    whole = config.availability.is_perfect and _holds_all_images(config)
    return not (METHODS[config.method].centralised and whole)


def _holds_all_images(config: ClusterConfig) -> bool:
    """Return whether clients hold all images at every degree of heterogeneity of the partition."""
    partition, known = config.partition, config.dataset in DATASETS
    classes = DATASETS[config.dataset].classes if known and partition.clients else None
    if partition.kind == "skew":
        # A class fills its clients where classes are alike and each has equally many of these.
        even = partition.clients is None or (classes and partition.clients % classes == 0)
        return bool(even) and config.data.imbalance == 1
    if isinstance(partition, ClassesPartition) and partition.clients is not None:
        return classes is not None and partition.clients >= classes
    return True


@dataclass(frozen=True)
class TableEntry:
    """Entry of a comparison table, as text.

    Attributes:
        score: Mean score and, if there are several runs, its deviation.
        published: The paper's value in parentheses; empty if there is none.
        best: Whether no method has a better mean under the same conditions.
        differs: Whether it differs significantly from the baseline (or the best) entry.
    """

    score: str
    published: str
    best: bool
    differs: bool = False

    @property
    def marked(self) -> str:
        """The score, followed by ``*`` if it differs from the reference significantly."""
        return self.score + significance.MARK * self.differs

    def format(self, bold: str, escape: Callable[[str], str]) -> str:
        """Format the entry by ``escape``; if best, also by the template ``bold`` (``**{}**``)."""
        score = escape(self.marked)
        score = bold.format(score) if self.best else score
        return (
            score + " " + escape(self.published)
        ).strip()  # also of markup, which f-strings lose


class Comparison:
    """Tables that compare the finished runs of several methods.

    Args:
        runs: The planned runs, at least one.
        results: Axes (distinguishing settings) and summary of each finished run.
        baseline: Method that all others are tested against; None: the best of each column.

    Attributes:
        rates: Names of the axes (varied settings) other than method and degree of heterogeneity.
        scores: Titles of the scores by their keys in ``rows``.
        rows: Settings and mean scores of each cell (combination of settings) with a finished run.

    Raises:
        UsageError: No planned run is of the method ``baseline``.
    """

    def __init__(
        self,
        runs: Sequence[PlannedRun[ClusterConfig]],
        results: Sequence[tuple[Axes, Json]],
        baseline: str | None = None,
    ) -> None:
        self.methods = list(dict.fromkeys(run.axes["method"] for run in runs))
        if baseline not in (None, *self.methods):
            raise UsageError(
                f"baseline = {baseline} is none of the methods that are compared: it should be one "
                f"of {', '.join(self.methods)}"
            )
        self.baseline = baseline
        names = dict.fromkeys(name for run in runs for name in run.axes)
        self.rates = [name for name in names if name not in ("method", *DEGREES)]
        tied = [run for run in runs if heeds_partition(run.config)]
        self._tied = {self._key(run.axes) for run in tied}
        degrees = [(_degree(run.axes), run.config) for run in tied or runs]
        self._headings = {degree: _heading(degree, config) for degree, config in degrees}
        places = dict.fromkeys(self._key(run.axes)[0] for run in runs)
        self._places = sorted(places, key=lambda place: self.methods.index(place[0]))
        configs = {self._key(run.axes): run.config for run in runs}
        costed = [(axes, with_costs(with_presence_scores(summary))) for axes, summary in results]
        self._summaries = {self._key(axes): own for axes, own in group_by_cell(costed)}
        away = any(summary.get("scores_absent") for _, summary in results)
        self.scores = SCORES | (_BY_PRESENCE if away else {})
        self.rows = [
            _with_published(row, configs[self._key(row)])
            for row in cell_rows(costed, [*self.scores, *JUDGED, *_BESIDE_PUBLISHED, *_COSTS])
        ]
        if self._known("nmi published", "kappa published") and self._known(*_BESIDE_PUBLISHED):
            self.scores |= _BESIDE_PUBLISHED
        if self._known(*JUDGED):
            self.scores = (self.scores if self._known(*SCORES) else {}) | JUDGED
        self._fewer = sum(bool(missing_clusters_warning(summary)) for _, summary in results)
        self._cells = {self._key(row): row for row in self.rows}
        self._best: dict[tuple[str, _Degree, _Place], float] = {}
        self._p: dict[tuple[str, _Degree, _Place], float] = {}
        for score, degree in itertools.product(self.scores, self._headings):
            self._compare(score, degree)

    def _known(self, *keys: str) -> bool:
        return any(row.get(key) is not None for row in self.rows for key in keys)

    def _key(self, axes: Axes) -> tuple[_Place, _Degree]:
        own = tuple(axes.get(name, _UNHEEDED) for name in self.rates)
        return (axes["method"], own), _degree(axes)

    def _cell_key(self, place: _Place, degree: _Degree) -> tuple[_Place, _Degree]:
        """Return the key of a row's entry in a column; degree None if it is for all columns."""
        own = (place, degree)
        return own if own in self._cells or (place, None) in self._tied else (place, None)

    def _compare(self, score: str, degree: _Degree) -> None:
        """Store the best mean of comparable rows in a column, and p-values against a reference.

        The reference is the best row, or the best of the method ``baseline`` if there is one.
        Rows are comparable if the settings that change the problem are equal, or without effect.
        """
        conditions = [number for number, name in enumerate(self.rates) if is_condition(name)]
        sign = -1 if score == "davies_bouldin" else 1
        keys = {place: self._cell_key(place, degree) for place in self._places}
        cells = {place: self._cells.get(key, {}) for place, key in keys.items()}
        known = {place: cell[score] for place, cell in cells.items() if score in cell}
        digits = significance.DIGITS
        means = {at: sign * round(own, digits) for at, own in known.items() if own is not None}
        for place in self._places:
            own = [place[1][n] for n in conditions]
            group = {
                other: significance.by_seed(self._summaries[keys[other]], score)
                for other in means
                if all(
                    a == b or _UNHEEDED in (a, b)
                    for a, b in zip(own, (other[1][n] for n in conditions), strict=True)
                )
            }
            if group:
                self._best[score, degree, place] = sign * max(means[other] for other in group)
            if compared := [other for other in group if self.baseline in (None, other[0])]:
                reference = max(compared, key=means.__getitem__)
                for other, p in significance.corrected_p_values(group, reference).items():
                    self._p[score, degree, other] = p
                    # The p-value of a cell for all degrees differs from column to column.
                    if keys[other][1] == degree:
                        cells[other][f"{score} p-value"] = p

    def table(self, score: str) -> list[dict[str, TableEntry | str]]:
        """Return the table of a score (a key of ``scores``), with a column for each degree.

        There is a row for each method and combination of other settings. A centralised method may
        have the same entry in all columns. For scores of connected or absent clients, or without
        labels, rows without any value are left out.
        """
        rows: list[dict[str, TableEntry | str]] = []
        for place in self._places:
            method, rates = place
            row: dict[str, TableEntry | str] = {"method": METHODS[method].title}
            shares = zip(self.rates, rates, strict=True)
            row |= {
                axis_name(name): "" if own in (None, _UNHEEDED) else format_number(own)
                for name, own in shares
            }
            for degree, heading in self._headings.items():
                if cell := self._cells.get(self._cell_key(place, degree)):
                    mean, at = cell[score], (score, degree, place)
                    row[heading] = TableEntry(
                        _shown(mean, "{:.4f}") + _shown(cell[f"{score} deviation"], " ± {:.4f}"),
                        _shown(cell.get(f"{score} published"), "({:.4f})"),
                        mean is not None and round(mean, significance.DIGITS) == self._best.get(at),
                        self._p.get(at, 1.0) < significance.LEVEL,
                    )
            if score in SCORES or any(
                isinstance(own, TableEntry) and own.score for own in row.values()
            ):
                rows.append(row)
        return rows

    def published(self, axes: Axes, score: str) -> float | None:
        """Return the papers' value of ``score`` at a cell's settings; None if absent or not run."""
        value: float | None = self._cells.get(self._key(axes), {}).get(f"{score} published")
        return value

    def costs(self) -> list[dict[str, str]]:
        """Return the table of each method's traffic and time, means over all its cells.

        MB (10⁶ bytes) are for one client in the whole run, including the final model that it
        receives; seconds are the sum over all clients and the server.
        """
        rows = []
        for method in self.methods:
            if cells := [row for row in self.rows if row["method"] == method]:
                chosen = METHODS[method]
                row = {"method": chosen.title, "leaves a client": chosen.sends}
                for key, (title, form) in _COSTS.items():
                    row[title] = form.format(sum(cell[key] for cell in cells) / len(cells))
                rows.append(row)
        return rows

    def captions(self) -> dict[str, str]:
        """Return the caption of each score's table, by the score's key."""
        seeds = describe_seeds([row["runs"] for row in self.rows])
        reference = METHODS[self.baseline].title if self.baseline else "the best of its column"
        tested, remarks = {score for score, _, _ in self._p}, self._remarks()
        return {
            score: title
            + " (published)" * self._known(f"{score} published")
            + f"; {seeds}"
            + (f"; {significance.caption(reference)}" if score in tested else "")
            + remarks
            for score, title in self.scores.items()
        }

    def _remarks(self) -> str:
        """Describe axes without effect, and how many runs have too few clusters, for captions."""
        runs = format_count(self._fewer, "run")
        remarks = f"; fewer clusters than was asked for in {runs}" if self._fewer else ""
        for name in self.rates:
            others = [key for key in ("method", *DEGREES, *self.rates) if key != name]
            rest = {tuple(row.get(key) for key in others) for row in self.rows}
            same = {tuple(row.get(key) for key in (*others, *self.scores)) for row in self.rows}
            if len(rest) == len(same) < len(self.rows) and self._known(*self.scores):
                remarks += f"; {axis_name(name)} changes nothing"
        return remarks

    def format_tables(
        self, bold: str, escape: Callable[[str], str] = str
    ) -> dict[str, list[dict[str, str]]]:
        """Format the tables of scores and costs; return their rows, by caption.

        Args:
            bold: Template for the best of a column, such as ``**{}**``.
            escape: Converts text to the output format.
        """
        tables: dict[str, Sequence[Mapping[str, TableEntry | str]]] = {
            caption: self.table(score) for score, caption in self.captions().items()
        }
        if costs := self.costs():
            tables[COSTS_TITLE] = costs
        return {
            title: [
                {
                    name: escape(own) if isinstance(own, str) else own.format(bold, escape)
                    for name, own in row.items()
                }
                for row in rows
            ]
            for title, rows in tables.items()
        }

    def as_markdown(self) -> str:
        """Format all tables, the best of each column in bold, published values in parentheses."""
        tables = self.format_tables("**{}**").items()
        return "\n".join(f"{title}\n\n{as_markdown(rows)}" for title, rows in tables)

    def as_latex(self) -> str:
        """Format all tables as ``as_markdown`` does, for a LaTeX file with ``booktabs``."""
        tables = self.format_tables(r"\textbf{{{}}}", escape_latex).items()
        return "\n".join(as_latex(title, rows) for title, rows in tables)


def is_condition(name: str) -> bool:
    """Return whether a setting, or the study of a run, changes the problem."""
    return name in _RATES or name.partition(".")[0] in _CONDITIONS


def _degree(axes: Axes) -> _Degree:
    """Return the degree of heterogeneity (p, classes per client or alpha); None if not set."""
    return next(((name, axes[name]) for name in DEGREES if axes.get(name) is not None), None)


def _heading(degree: _Degree, config: ClusterConfig) -> str:
    """Return the heading of a column: p for a skewed partition, else the partition in words."""
    if config.partition.kind != "skew":
        return config.partition.in_words
    return "any p" if degree is None else f"p = {degree[1]:g}"


def with_presence_scores(summary: Json) -> Json:
    """Return a copy of a summary, with scores of connected and absent clients as keys, if any."""
    by_group = {who: summary.get(f"scores_{who}") for who in ("connected", "absent")}
    return summary | {
        f"{score}_{who}": own[score] for who, own in by_group.items() if own for score in _PUBLISHED
    }


def with_costs(summary: Json) -> Json:
    """Return a copy of a summary, with the MB (10⁶ bytes) that a client sends and receives."""
    up, down = (summary[f"bytes_{way}"] / summary["connected"] for way in ("up", "down"))
    down += summary.get("bytes_delivered", 0)
    return summary | {"mb_up": up / 1e6, "mb_down": down / 1e6}


def _has_published_settings(config: ClusterConfig) -> bool:
    """Return whether a run's data, clients, clusters and partition are those of CCFC++'s tables."""
    whole = config.data == ClusterDataConfig(root=config.data.root)
    ten = {config.partition.clients, config.clusters} <= {None, 10}
    return whole and ten and config.partition.kind == "skew" and config.availability.is_perfect


def _with_published(row: Json, config: ClusterConfig) -> Json:
    method, comparable = METHODS[row["method"]], _has_published_settings(config)
    place = config.dataset, None if method.centralised else row.get("p"), row["method"]
    published = {
        f"{score} published": published_score(score, *place) if comparable else None
        for score in _PUBLISHED
    }
    return {"method": row["method"], "p": row.get("p")} | row | published | {"sends": method.sends}


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
