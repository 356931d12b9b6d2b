"""Systems side by side: which runs a comparison has, and its tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from ccfcpp.clustering.config import ClusterConfig, ClusterDataConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import resolve
from ccfcpp.papers.tables import published_score
from ccfcpp.runs.study import Axes, Planned, Row, as_markdown, cell_rows

SCORES = {"nmi": "NMI", "kappa": "Kappa"}
_BESIDE_PUBLISHED = {"nmi_geometric": "NMI by the geometric mean"}
"""The authors' code has the arithmetic mean, ``nmi``; their paper cites the geometric one."""
_BY_PRESENCE = {
    f"{score}_{who}": (score, who) for score in SCORES for who in ("connected", "absent")
}
"""Scores over the images of connected and of absent clients, for the table of numbers."""
_COSTS = {
    "communication_rounds": ("rounds", "{:.4g}"),
    "mb_up": ("MB up", "{:,.3f}"),
    "mb_down": ("MB down", "{:,.3f}"),
    "seconds": ("seconds", "{:,.1f}"),
    "refused_updates": ("refused", "{:.4g}"),
}
COSTS_TITLE = "Cost of a run: MB of each client, seconds of all"
_ALL_SKEWS = "any p"


def plan_comparison(
    layers: Sequence[Tree], values: Tree, methods: Sequence[str], skews: Sequence[str], seeds: int
) -> list[Planned[ClusterConfig]]:
    """Every method at every degree of skew with every seed.

    A centralised method runs once a seed, where all clients are there.

    Args:
        layers: The user's files.
        values: Single values of the user, over them.
        methods: Names of methods.
        skews: Values of p; empty for another partition than the skew.
        seeds: How many seeds each cell has.

    Raises:
        UsageError: A value is out of its range.
    """
    # Images of clients that are absent are missing, and those depend on the partition.
    perfect = resolve(ClusterConfig, "cluster", *layers, values).availability.is_perfect
    planned: list[Planned[ClusterConfig]] = []
    for method in methods:
        centralised = perfect and method in METHODS and METHODS[method].centralised
        of_method: Sequence[str | None] = [None] if centralised else skews or [None]
        for p in of_method:
            of_cell: Tree = {"method": method} | ({} if p is None else {"partition": {"p": p}})
            config = resolve(ClusterConfig, "cluster", *layers, of_cell, values)
            axes: Axes = {"method": method}
            if not centralised:
                axes |= config.partition.degree
            if axes in (run.axes for run in planned):
                continue
            for number in range(seeds):
                of_seed = config.model_copy(update={"seed": config.seed + number})
                planned.append(Planned(axes, of_seed))
    return planned


@dataclass(frozen=True)
class Entry:
    """What a table has in one place.

    Attributes:
        score: Mean and, of several runs, deviation.
        published: The paper's value, in parentheses; empty where there is none.
        best: Whether no other method's mean is higher.
    """

    score: str
    published: str
    best: bool


class Comparison:
    """The tables of the runs that are finished.

    Args:
        runs: What is planned, one run at least.
        results: Axes and summary of each finished run.
    """

    def __init__(
        self,
        runs: Sequence[Planned[ClusterConfig]],
        results: Sequence[tuple[Axes, Row]],
    ) -> None:
        self.methods = list(dict.fromkeys(run.axes["method"] for run in runs))
        skews = dict.fromkeys(run.axes["p"] for run in runs if "p" in run.axes)
        self.columns: list[float | None] = list(skews) or [None]
        self._partition = runs[0].config.partition
        costed = [(axes, _with_costs(_with_absence(summary))) for axes, summary in results]
        by_presence = [key for key in _BY_PRESENCE if any(key in summary for _, summary in costed)]
        measures = [*SCORES, *_BESIDE_PUBLISHED, *by_presence, *_COSTS]
        self.rows = [_with_published(row, runs[0].config) for row in cell_rows(costed, measures)]
        self._cells = {(row["method"], row.get("p")): row for row in self.rows}

    def table(self, score: str) -> list[dict[str, Entry | str]]:
        """A row for each method, with an entry for each degree of skew.

        A centralised method has the same entry in all of them.
        """
        best = {p: self._best(score, p) for p in self.columns}
        rows: list[dict[str, Entry | str]] = []
        for method in self.methods:
            row: dict[str, Entry | str] = {"method": METHODS[method].title}
            for p in self.columns:
                if cell := self._cell(method, p):
                    mean = cell[score]
                    row[self._heading(p)] = Entry(
                        _with_deviation(mean, cell[f"{score} deviation"]),
                        _shown(cell.get(f"{score} published"), "({:.4f})"),
                        mean is not None and mean == best[p],
                    )
            rows.append(row)
        return rows

    def _heading(self, p: float | None) -> str:
        if self._partition.kind != "skew":
            return self._partition.in_words
        return _ALL_SKEWS if p is None else f"p = {p:g}"

    def _cell(self, method: str, p: float | None) -> Row | None:
        return self._cells.get((method, p)) or self._cells.get((method, None))

    def _best(self, score: str, p: float | None) -> float | None:
        cells = [self._cell(method, p) for method in self.methods]
        means = [cell[score] for cell in cells if cell and cell[score] is not None]
        return max(means, default=None)

    def costs(self) -> list[dict[str, str]]:
        """What each method sends, and what it takes: means over all its cells.

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
        """What each score's table is called, which says what stands in parentheses.

        Beside the paper's values there is a table of NMI by the geometric mean, too.
        """
        published = {
            score
            for score in SCORES
            if any(row[f"{score} published"] is not None for row in self.rows)
        }
        beside = _BESIDE_PUBLISHED if published else {}
        known = {
            score: title + " (published)" * (score in published) for score, title in SCORES.items()
        }
        return known | beside

    def as_markdown(self) -> str:
        """All tables, the best of each column in bold, the published value in parentheses."""
        parts = []
        for score, title in self.titles().items():
            shown = [
                {name: _as_text(entry) for name, entry in row.items()} for row in self.table(score)
            ]
            parts.append(f"{title}\n\n{as_markdown(shown)}")
        if costs := self.costs():
            parts.append(f"{COSTS_TITLE}\n\n{as_markdown(costs)}")
        return "\n".join(parts)


def _with_absence(summary: Row) -> Row:
    """With the scores of connected and of absent clients' images, where clients are absent."""
    if summary.get("scores_absent") is None:
        return summary
    apart = {key: summary[f"scores_{who}"][score] for key, (score, who) in _BY_PRESENCE.items()}
    return summary | apart


def _with_costs(summary: Row) -> Row:
    up, down = (summary[f"bytes_{way}"] / summary["connected"] for way in ("up", "down"))
    return summary | {"mb_up": up / 1e6, "mb_down": (down + summary["bytes_delivered"]) / 1e6}


def _fits_the_tables(config: ClusterConfig) -> bool:
    """Whether a run has the images, clients and availability of the CCFC++ paper's tables."""
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


def _as_text(entry: Entry | str) -> str:
    if isinstance(entry, str):
        return entry
    score = f"**{entry.score}**" if entry.best else entry.score
    return f"{score} {entry.published}".strip()
