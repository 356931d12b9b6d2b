"""Table and figure of NMI against ε from finished runs: ``python -m scripts.epsilon --help``."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ccfcpp.reports.drawing import Drawn, style
from ccfcpp.reports.palette import colours
from ccfcpp.reports.writing import as_svg

NO_NOISE = 1e4
"""Budget from which on noise is negligible, so that only clipping has an effect."""

_SHOWN = {NO_NOISE: "clipping alone", math.inf: "no privacy"}
_PLACES = {2.0: 2.0, 8.0: 8.0, 32.0: 32.0, NO_NOISE: 128.0, math.inf: 512.0}
"""Places of the budgets on the axis."""

_NAMES = {"fed-scan": "Fed-SCAN", "ccfc++": "CCFC++", "ccfc": "CCFC"}


@dataclass(frozen=True, order=True)
class Line:
    """Setting of a line in the figure.

    Attributes:
        level: ``client`` or ``image``.
        samples: Number of images of all clients.
        dataset: Name of the data set.
        clients: Number of clients.
        method: The system.
        p: Skew of the partition.
    """

    level: str
    samples: int
    dataset: str
    clients: int
    method: str
    p: float

    @property
    def panel(self) -> str:
        """Name of the panel in which the line is drawn."""
        return (
            f"{self.dataset}, {self.samples:,} images, {self.level} level, {self.clients} clients"
        )

    @property
    def label(self) -> str:
        """Name of the line in its panel."""
        return f"{_NAMES.get(self.method, self.method)}, p = {self.p:g}"


Scores = dict[Line, dict[float, list[tuple[float, float]]]]
"""NMI and Kappa of runs by line and budget; the budget ∞ means no privacy."""


def read(folders: Iterable[Path]) -> Scores:
    """Read the scores of finished runs; runs without privacy are added to each level."""
    finished = [path for folder in sorted(folders) if (path := folder / "summary.json").exists()]
    found: Scores = defaultdict(lambda: defaultdict(list))
    plain: list[Mapping[str, Any]] = []
    for summary in map(_summary, finished):
        privacy = summary.get("privacy") or {}
        if privacy.get("level", "none") == "none":
            plain.append(summary)
            continue
        budget = min(privacy["budget"], NO_NOISE)
        found[_line(privacy["level"], summary)][budget].append((summary["nmi"], summary["kappa"]))
    for summary, level in itertools.product(plain, ("client", "image")):
        line = _line(level, summary)
        if line in found:
            found[line][math.inf].append((summary["nmi"], summary["kappa"]))
    return found


def _summary(path: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(path.read_text())
    return found


def _line(level: str, summary: Mapping[str, Any]) -> Line:
    keys = ("samples", "dataset", "clients", "method", "p")
    return Line(level, *(summary[key] for key in keys))


def table(scores: Scores) -> str:
    """Table of means over seeds, with a row for each system and budget and a column for each p."""
    shares = sorted({line.p for line in scores})
    head = ["runs", "system", "ε", *(f"NMI / Kappa, p = {p:g}" for p in shares)]
    rows = [head, ["---"] * len(head)]
    for panel, method in sorted({(line.panel, line.method) for line in scores}):
        of_p = {
            line.p: cells
            for line, cells in scores.items()
            if (line.panel, line.method) == (panel, method)
        }
        for budget in sorted({each for cells in of_p.values() for each in cells}, reverse=True):
            cells = [_cell(of_p.get(p, {}).get(budget, [])) for p in shares]
            shown = _SHOWN.get(budget, f"{budget:g}")
            rows.append([panel, _NAMES.get(method, method), shown, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(runs: Sequence[tuple[float, float]]) -> str:
    if not runs:
        return "-"
    nmi, kappa = (statistics.mean(column) for column in zip(*runs, strict=True))
    return f"{nmi:.3f} / {kappa:.3f}" + (f" ({len(runs)})" if len(runs) > 1 else "")


def figure(scores: Scores) -> Drawn:
    """Draw NMI against ε in a panel for each data set and level."""
    panels = sorted({line.panel: line for line in sorted(scores)}.values(), reverse=True)
    names = [line.panel for line in panels]
    lines = sorted({(line.method, line.p, line.label) for line in scores}, reverse=True)
    inks = dict(zip([label for *_, label in lines], colours(len(lines)), strict=True))
    with style("privacy"):
        drawn = Figure(figsize=(9, 3.2 * -(-len(names) // 2)))
        for number, name in enumerate(names):
            axes = drawn.add_subplot(-(-len(names) // 2), min(2, len(names)), number + 1)
            _draw(axes, name, {line: scores[line] for line in scores if line.panel == name}, inks)
        handles = {
            label: handle
            for axes in drawn.axes
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        drawn.legend(handles.values(), handles, loc="outside upper center", ncols=4, frameon=False)
    rows = [
        {"runs": line.panel, "line": line.label, "epsilon": budget, "nmi": nmi, "kappa": kappa}
        for line, cells in sorted(scores.items())
        for budget, runs in sorted(cells.items())
        for nmi, kappa in runs
    ]
    return Drawn("privacy", "NMI against ε", "Means over seeds; dots are runs.", drawn, rows)


def _draw(axes: Axes, name: str, lines: Scores, inks: Mapping[str, str]) -> None:
    for line, cells in sorted(lines.items(), key=lambda item: item[0].label, reverse=True):
        places = {_PLACES.get(budget, budget): runs for budget, runs in sorted(cells.items())}
        means = [statistics.mean(nmi for nmi, _ in runs) for runs in places.values()]
        ink, dashes = inks[line.label], "-" if line.p == 0 else "--"
        axes.plot(list(places), means, color=ink, linestyle=dashes, label=line.label)
        dots = [(place, nmi) for place, runs in places.items() for nmi, _ in runs]
        axes.plot(*zip(*dots, strict=True), "o", color=ink, markersize=3.5)
    axes.set_xscale("log", base=2)
    names = [_SHOWN.get(budget, f"{budget:g}").replace(" ", "\n") for budget in _PLACES]
    axes.set_xticks(list(_PLACES.values()), names)
    axes.set_xticks([], minor=True)
    axes.set(ylim=(0, 1), title=name, xlabel="ε", ylabel="NMI")
    axes.title.set_fontsize(9)


def main(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    svg: Annotated[Path | None, typer.Option(help="Write the figure there.")] = None,
) -> None:
    """Print the table, and write the figure if ``--svg`` is given."""
    scores = read(folders)
    if not scores:
        raise typer.BadParameter("no folder holds a finished run with --privacy")
    typer.echo(table(scores))
    if svg is not None:
        svg.write_text(as_svg(figure(scores)))


if __name__ == "__main__":
    typer.run(main)
