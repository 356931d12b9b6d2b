"""Comparisons of systems: which runs they have, and their tables."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ccfcpp.clustering.config import ClusterConfig, ClusterDataConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import resolve, values_of
from ccfcpp.papers.reproduction.published import published_score
from ccfcpp.runs.given import as_tree
from ccfcpp.runs.study import Axes, Planned, Row, as_markdown, cell_rows

SCORES = {"nmi": "NMI", "kappa": "Kappa"}
_BESIDE_PUBLISHED = {"nmi_geometric": "NMI by the geometric mean"}
"""The authors' code has the arithmetic mean, ``nmi``; their paper cites the geometric one."""
_BY_PRESENCE = {
    f"{score}_{who}": f"{title} of {who} clients"
    for who in ("connected", "absent")
    for score, title in SCORES.items()
}
DEGREES = ("p", "classes_per_client", "alpha")
"""Axes of how much clients differ, which are the columns of a table of scores."""
_COSTS = {
    "communication_rounds": ("rounds", "{:.4g}"),
    "mb_up": ("MB up", "{:,.3f}"),
    "mb_down": ("MB down", "{:,.3f}"),
    "seconds": ("seconds", "{:,.1f}"),
    "refused_updates": ("refused", "{:.4g}"),
}
COSTS_TITLE = "Cost of a run: MB of each client, seconds of all"
_ALL_SKEWS = "any p"
_Degree = float | str | None


def plan_comparison(
    layers: Sequence[Tree],
    values: Tree,
    methods: Sequence[str],
    axes: Mapping[str, Sequence[str]],
    seeds: int,
) -> list[Planned[ClusterConfig]]:
    """Plan every method at every place of the axes with every seed.

    Where no client is absent, a centralised method runs once a seed, whatever the partition. The
    user's single values are over those of the files, which are ``layers``; all combinations of the
    axes' values, by dotted key, are run.

    Raises:
        UsageError: A value is out of its range.
    """
    planned: list[Planned[ClusterConfig]] = []
    for method, *place in itertools.product(methods, *axes.values()):
        of_place = as_tree({"method": method} | dict(zip(axes, place, strict=True)))
        config = resolve(ClusterConfig, "cluster", *layers, of_place, values)
        own = _own_axes(config, axes)
        if own in (run.axes for run in planned):
            continue
        for number in range(seeds):
            of_seed = config.model_copy(update={"seed": config.seed + number})
            planned.append(Planned(own, of_seed))
    return planned


def _own_axes(config: ClusterConfig, axes: Iterable[str]) -> Axes:
    """Return what sets a cell apart, by the last part of its key."""
    own: Axes = {"method": config.method}
    # Images of clients that are absent are missing, and those depend on the partition.
    if not (METHODS[config.method].centralised and config.availability.is_perfect):
        own |= config.partition.degree
    values = values_of(config)
    rates = [key for key in axes if not key.startswith("partition.")]
    return own | {key.rpartition(".")[2]: values[key] for key in rates}


@dataclass(frozen=True)
class Entry:
    """An entry of a table: the mean and, of several runs, the deviation.

    The paper's value is in parentheses, or empty where there is none. The best of a column is not
    below any other method's.
    """

    score: str
    published: str
    best: bool

    def written(self, bold: str) -> str:
        """Write the entry; ``bold``, such as ``**{}**``, is the form of the best."""
        score = bold.format(self.score) if self.best else self.score
        return (score + " " + self.published).strip()  # also of markup, which f-strings lose


class Comparison:
    """The tables of finished runs.

    Args:
        runs: The planned runs, one at least.
        results: Axes and summary of each finished run.

    Attributes:
        rates: Names of the rates of absent clients by which cells differ.
        scores: Titles of the scores by their keys in ``rows``.
        rows: Numbers of each cell that has a finished run.
    """

    def __init__(
        self,
        runs: Sequence[Planned[ClusterConfig]],
        results: Sequence[tuple[Axes, Row]],
    ) -> None:
        self.methods = list(dict.fromkeys(run.axes["method"] for run in runs))
        names = dict.fromkeys(name for run in runs for name in run.axes)
        self.rates = [name for name in names if name not in ("method", *DEGREES)]
        headings = {_degree(run.axes): run.config.partition.in_words for run in runs}
        self._headings = {
            degree: heading for degree, heading in headings.items() if degree is not None
        } or headings
        self._failures = list(dict.fromkeys(self._rates_of(run.axes) for run in runs))
        self.scores = dict(SCORES)
        if any(summary.get("scores_absent") for _, summary in results):
            self.scores |= _BY_PRESENCE
        configs = {self._key(run.axes): run.config for run in runs}
        costed = [(axes, _with_costs(by_presence(summary))) for axes, summary in results]
        self.rows = [
            _with_published(row, configs[self._key(row)])
            for row in cell_rows(costed, [*self.scores, *_BESIDE_PUBLISHED, *_COSTS])
        ]
        if self._known("nmi published", "kappa published") and self._known(*_BESIDE_PUBLISHED):
            self.scores |= _BESIDE_PUBLISHED
        self._cells = {self._key(row): row for row in self.rows}

    def _known(self, *keys: str) -> bool:
        return any(row.get(key) is not None for row in self.rows for key in keys)

    def _rates_of(self, axes: Axes) -> tuple[float, ...]:
        return tuple(axes[name] for name in self.rates)

    def _key(self, axes: Axes) -> tuple[str, _Degree, tuple[float, ...]]:
        return axes["method"], _degree(axes), self._rates_of(axes)

    def table(self, score: str) -> list[dict[str, Entry | str]]:
        """Return, for a key of ``scores``, a row for each method and rate of failures.

        It has an entry for each skew; a centralised method may have the same in all of them. Rows
        without any scores of connected or of absent clients are left out.
        """
        rows: list[dict[str, Entry | str]] = []
        for method, failures in itertools.product(self.methods, self._failures):
            row: dict[str, Entry | str] = {"method": METHODS[method].title}
            shares = zip(self.rates, failures, strict=True)
            row |= {name.replace("_", " "): f"{share:g}" for name, share in shares}
            for degree, heading in self._headings.items():
                if cell := self._cell(method, degree, failures):
                    mean = cell[score]
                    row[_heading(degree, heading)] = Entry(
                        _with_deviation(mean, cell[f"{score} deviation"]),
                        _shown(cell.get(f"{score} published"), "({:.4f})"),
                        mean is not None and mean == self._best(score, degree, failures),
                    )
            if score in SCORES or any(isinstance(own, Entry) and own.score for own in row.values()):
                rows.append(row)
        return rows

    def published(self, axes: Axes, score: str) -> float | None:
        """Return the papers' value of a cell; None where there is none, or no run is finished."""
        value: float | None = self._cells.get(self._key(axes), {}).get(f"{score} published")
        return value

    def _cell(self, method: str, degree: _Degree, failures: tuple[float, ...]) -> Row | None:
        places = ((method, own, failures) for own in (degree, None))
        return next((self._cells[place] for place in places if place in self._cells), None)

    def _best(self, score: str, degree: _Degree, failures: tuple[float, ...]) -> float | None:
        cells = [self._cell(method, degree, failures) for method in self.methods]
        means = [cell[score] for cell in cells if cell and cell[score] is not None]
        return max(means, default=None)

    def costs(self) -> list[dict[str, str]]:
        """Return what each method sends and how long it takes, means over all its cells.

        Megabytes are 10⁶ bytes of a client in the whole run, with what it receives in the end to
        assign its images; seconds are those of all clients and the server.
        """
        rows = []
        for method in self.methods:
            cells = [row for row in self.rows if row["method"] == method]
            if cells:
                means = {
                    title: form.format(sum(cell[key] for cell in cells) / len(cells))
                    for key, (title, form) in _COSTS.items()
                }
                chosen = METHODS[method]
                rows.append({"method": chosen.title, "leaves a client": chosen.sends} | means)
        return rows

    def titles(self) -> dict[str, str]:
        """Return the title of each score's table, which says what stands in parentheses."""
        return {
            score: title + " (published)" * self._known(f"{score} published")
            for score, title in self.scores.items()
        }

    def written(self, bold: str) -> dict[str, list[dict[str, str]]]:
        """Return the tables of scores as text by title; see ``Entry.written``."""

        def text(own: Entry | str) -> str:
            return own if isinstance(own, str) else own.written(bold)

        return {
            title: [{name: text(own) for name, own in row.items()} for row in self.table(score)]
            for score, title in self.titles().items()
        }

    def as_markdown(self) -> str:
        """Write all tables, the best of each column in bold, published values in parentheses."""
        tables = self.written("**{}**")
        if costs := self.costs():
            tables[COSTS_TITLE] = costs
        return "\n".join(f"{title}\n\n{as_markdown(rows)}" for title, rows in tables.items())


def _degree(axes: Axes) -> _Degree:
    """Return how much clients differ; None where it means nothing."""
    return next((axes[name] for name in DEGREES if axes.get(name) is not None), None)


def _heading(degree: _Degree, partition: str) -> str:
    """Return the heading of a column: the partition, or p alone."""
    if not partition.startswith("skew"):
        return partition
    return _ALL_SKEWS if degree is None else f"p = {degree:g}"


def by_presence(summary: Row) -> Row:
    """Add the scores over the images of connected and of absent clients, where there are any."""
    found = {who: summary.get(f"scores_{who}") for who in ("connected", "absent")}
    return summary | {f"{s}_{who}": own[s] for who, own in found.items() if own for s in SCORES}


def _with_costs(summary: Row) -> Row:
    up, down = (summary[f"bytes_{way}"] / summary["connected"] for way in ("up", "down"))
    return summary | {"mb_up": up / 1e6, "mb_down": (down + summary["bytes_delivered"]) / 1e6}


def _fits_the_tables(config: ClusterConfig) -> bool:
    """Return whether a run is like those of the CCFC++ paper's tables in all but its method."""
    whole = config.data == ClusterDataConfig(root=config.data.root)
    ten = {config.partition.clients, config.clusters} <= {None, 10}
    return whole and ten and config.partition.kind == "skew" and config.availability.is_perfect


def _with_published(row: Row, config: ClusterConfig) -> Row:
    p = None if METHODS[row["method"]].centralised else row.get("p")
    found = {
        f"{score} published": published_score(score, config.dataset, p, row["method"])
        if _fits_the_tables(config)
        else None
        for score in SCORES
    }
    sends = METHODS[row["method"]].sends
    return {"method": row["method"], "p": row.get("p")} | row | found | {"sends": sends}


def _with_deviation(mean: float | None, deviation: float | None) -> str:
    return _shown(mean, "{:.4f}") + _shown(deviation, " ± {:.4f}")


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
