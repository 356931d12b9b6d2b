"""What longer runs reach: ``python -m scripts.minutes RUN… --svg minutes.svg``."""

import json
from pathlib import Path
from typing import Annotated

import typer
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from ccfcpp.reports.drawing import Drawn, style
from ccfcpp.reports.palette import colours
from ccfcpp.reports.writing import as_svg

Run = dict[str, float]
_SCORES = {"nmi": "NMI", "kappa": "Kappa"}


def read(folders: list[Path]) -> list[Run]:
    """The minutes and the scores of finished runs, the shortest first."""
    found = []
    for folder in folders:
        summary = json.loads((folder / "summary.json").read_text())
        scores = {name: summary[name] for name in _SCORES}
        found.append({"minutes": summary["seconds"] / 60, **scores})
    return sorted(found, key=lambda run: run["minutes"])


def figure(runs: list[Run], published: dict[str, float]) -> Drawn:
    """Draw both scores of runs against minutes; dashed: what is published."""
    with style("minutes"):
        drawn = Figure(figsize=(6, 3.4))
        axes = drawn.add_subplot()
        for ink, (name, title) in zip(colours(len(_SCORES)), _SCORES.items(), strict=True):
            minutes, scores = [run["minutes"] for run in runs], [run[name] for run in runs]
            axes.plot(minutes, scores, "o", color=ink, label=title)
            if name in published:
                axes.axhline(published[name], color=ink, linestyle="--", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.set(xlabel="minutes", ylabel="score")
        axes.legend(frameon=False)
    note, rows = "Dots are runs; dashed: published.", [dict(run) for run in runs]
    return Drawn("minutes", "Scores against minutes", note, drawn, rows)


def main(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    svg: Annotated[Path, typer.Option(help="Write the figure there.")],
    nmi: Annotated[float | None, typer.Option(help="Published, for a dashed line.")] = None,
    kappa: Annotated[float | None, typer.Option(help="The same.")] = None,
) -> None:
    """Print the runs as a table, and write the figure."""
    runs = read(folders)
    published = {name: at for name, at in {"nmi": nmi, "kappa": kappa}.items() if at is not None}
    print("| minutes | NMI | Kappa |\n|---|---|---|")
    for run in runs:
        print("| {minutes:.0f} | {nmi:.3f} | {kappa:.3f} |".format(**run))
    svg.write_text(as_svg(figure(runs, published)))


if __name__ == "__main__":
    typer.run(main)
