"""The command ``ccfcpp report``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import progress_console, usage_errors
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import RunPaths, refuse_full, writable

if TYPE_CHECKING:
    from ccfcpp.report.contents import Contents


@flags.keyed(flags.DATA_ROOT)
def report(
    named: flags.Named,
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or one of a study.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="New folder of the report; that of the run or study otherwise, or a new one under "
            "reports/ for several runs."
        ),
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Show a run, several side by side, or a study on one HTML page with figures and numbers."""
    from ccfcpp.papers.study_page import is_study
    from ccfcpp.runs.environment import use_processors

    if len({run.resolve() for run in runs}) < len(runs):
        raise UsageError("a run is named twice: give each folder once")
    folder = _place(runs, out)
    use_processors()
    with usage_errors():
        if len(runs) == 1 and is_study(runs[0]):
            drawn = _write_study(runs[0], folder)
        else:
            drawn = _write_runs(runs, folder, named["data.root"])
    path = str(folder / "report.html")
    if json_output:
        left_out = [{"figure": each.title, "reason": each.reason} for each in drawn.left_out]
        names = [figure.name for figure in drawn.figures]
        typer.echo(json.dumps({"page": path, "figures": names, "left_out": left_out}))
    else:
        typer.echo(path)


def _write_runs(runs: Sequence[Path], folder: Path, data_root: str | None) -> Contents:
    from ccfcpp.report.contents import contents
    from ccfcpp.report.examination import examine
    from ccfcpp.report.page import page
    from ccfcpp.report.runs import labelled

    console, examined = progress_console(), []
    for run in runs:
        _refuse_unbegun(run)
        console.print(f"reading {run} …")
        examined.append(examine(run, data_root))
    console.print("drawing …")
    shown = labelled(examined)
    drawn = contents(shown)
    _write(folder, drawn, partial(page, shown, drawn))
    return drawn


def _write_study(study: Path, folder: Path) -> Contents:
    from ccfcpp.core.files import write_whole
    from ccfcpp.core.tables import as_csv
    from ccfcpp.papers.study_figures import study_figures
    from ccfcpp.papers.study_page import examine_study
    from ccfcpp.report.page import study_page

    examined = examine_study(study)
    drawn = study_figures(examined.cells)
    _write(folder, drawn, lambda svgs: study_page(drawn, svgs, examined.facts))
    write_whole(folder / "table.csv", as_csv(examined.rows).encode())
    return drawn


def _refuse_unbegun(run: Path) -> None:
    """Raise ``UsageError`` for a run none of whose rounds has ended: there is nothing to show."""
    paths = RunPaths(run)
    if paths.config.is_file() and not paths.summary.is_file() and not paths.read_log():
        raise UsageError(
            f"no round of the run in {run} has ended yet, and there is nothing to show: wait, or "
            "go on with it by --resume"
        )


def _place(runs: Sequence[Path], out: Path | None) -> Path:
    """Choose the folder of the report; raise ``UsageError`` where it holds something."""
    if out is None:
        return runs[0] if len(runs) == 1 else Path("reports") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"
    into_the_run = len(runs) == 1 and out.resolve() == runs[0].resolve()
    if not into_the_run:
        refuse_full(out)
    return out


def _write(folder: Path, drawn: Contents, page: Callable[[Mapping[str, str]], str]) -> None:
    from ccfcpp.core.files import write_whole
    from ccfcpp.report.writing import as_svg, write_figure

    figures = folder / "figures"
    with writable(folder):
        figures.mkdir(exist_ok=True)
    svgs = {figure.name: as_svg(figure) for figure in drawn.figures}
    for figure in drawn.figures:
        write_figure(figures, figure, svgs[figure.name])
    write_whole(folder / "report.html", page(svgs).encode())
