"""HTML reports of runs and studies, behind ``ccfcpp report`` and ``ccfcpp.report``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically, write_table
from ccfcpp.core.units import drawable
from ccfcpp.runs.paths import RunPaths, require_empty, writable

if TYPE_CHECKING:
    from ccfcpp.reports.contents import Contents

Say = Callable[[str], None]


def report(*runs: str | Path, out: str | Path | None = None) -> Path:
    """Write an HTML page that shows one run, compares several, or joins studies.

    The state folder of a client of a deployed federation gives a page for the data's owner.

    Args:
        runs: Folders of runs, or of studies, or one state folder of a client.
        out: New folder for the report. None: the folder of the run or study itself, or a new one
            under ``reports/`` if there are several.

    Returns:
        Path of the page, ``report.html``; its figures are in ``figures/`` beside it.

    Raises:
        UsageError: A folder holds neither a run nor a study, or ``out`` is not empty.

    Example:
        >>> import ccfcpp
        >>> ccfcpp.report("runs/digits", out="page")  # doctest: +SKIP
        PosixPath('page/report.html')
    """
    place = None if out is None else Path(out)
    return write_report(list(map(Path, runs)), place)[0]


def write_report(
    runs: Sequence[Path], out: Path | None = None, say: Say = lambda line: None
) -> tuple[Path, Contents]:
    """Write a report as ``report`` does; return the path of its page, and its figures.

    ``say`` is called with one-line messages on progress.
    """
    from ccfcpp.deployment.client.audit import is_state_folder
    from ccfcpp.reports.contents import Contents

    if not runs:
        raise UsageError("a report needs a run: give the folder of one")
    if len({run.resolve() for run in runs}) < len(runs):
        raise UsageError("a run is named twice: give each folder once")
    if any(map(is_state_folder, runs)) and len(runs) > 1:
        raise UsageError("the state of a client has a page of its own: give its folder alone")
    folder = _place(runs, out)
    if is_state_folder(runs[0]):
        from ccfcpp.reports.owner_page import owner_page

        page = owner_page(runs[0])
        return _write(folder, Contents(), lambda svgs: page)
    if all(RunPaths(run).study.is_file() for run in runs):
        return _write_studies(runs, folder)
    return _write_runs(runs, folder, say)


def _write_runs(runs: Sequence[Path], folder: Path, say: Say) -> tuple[Path, Contents]:
    from ccfcpp.reports.contents import contents
    from ccfcpp.reports.labels import label_runs
    from ccfcpp.reports.page import page
    from ccfcpp.reports.run_reader import read_run

    recorded = []
    for run in runs:
        paths = RunPaths(run)
        if paths.config.is_file() and not paths.summary.is_file() and not paths.read_log():
            raise UsageError(
                f"no round of the run in {run} has ended yet, and there is nothing to show: wait, "
                "or go on with it by --resume"
            )
        recorded.append(read_run(run))
    say("drawing …")
    shown = label_runs(recorded)
    drawn = contents(shown)
    return _write(folder, drawn, partial(page, shown, drawn))


def _write_studies(studies: Sequence[Path], folder: Path) -> tuple[Path, Contents]:
    from ccfcpp.reports.page import study_page
    from ccfcpp.studies.study_figures import study_figures
    from ccfcpp.studies.study_page import examine_studies

    examined = examine_studies(studies)
    drawn = study_figures(examined.cells)
    written = _write(folder, drawn, lambda svgs: study_page(drawn, svgs, examined.facts))
    write_table(folder / "table.csv", examined.rows)
    return written


def _place(runs: Sequence[Path], out: Path | None) -> Path:
    """Return the report's folder: ``out`` or a default; raise ``UsageError`` if it is not empty."""
    if out is None:
        return runs[0] if len(runs) == 1 else Path("reports") / f"{datetime.now():%Y%m%d-%H%M%S-%f}"
    if len(runs) > 1 or out.resolve() != runs[0].resolve():
        require_empty(out)
    return out


def _write(
    folder: Path, drawn: Contents, page: Callable[[Mapping[str, str]], str]
) -> tuple[Path, Contents]:
    """Write a report's figures and page; ``page`` maps SVGs, by the figures' names, to HTML."""
    from ccfcpp.reports.figure_files import as_svg, write_figure

    with writable(folder):
        if drawn.figures:
            (folder / "figures").mkdir(exist_ok=True)
    svgs = {figure.name: as_svg(figure) for figure in drawn.figures}
    for figure in drawn.figures:
        write_figure(folder / "figures", figure, svgs[figure.name])
    write_atomically(folder / "report.html", drawable(page(svgs)).encode())
    return folder / "report.html", drawn
