"""The command ``ccfcpp report``, which makes an HTML page of runs or studies."""

import json
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import progress_console, usage_errors
from ccfcpp.studies.report import write_report


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of runs, or of studies; or KEY.state of a client."
        ),
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
    """Show a run, several side by side, or studies joined in one, on one HTML page.

    At a client of a federation, show its images by cluster, what was left out, and
    what was sent: ccfcpp report KEY.state.
    """
    from ccfcpp.runs.environment import use_processors

    use_processors()
    with usage_errors():
        page, drawn = write_report(runs, out, progress_console().print)
    if json_output:
        left_out = [{"figure": each.title, "reason": each.reason} for each in drawn.left_out]
        names = [figure.name for figure in drawn.figures]
        typer.echo(json.dumps({"page": str(page), "figures": names, "left_out": left_out}))
    else:
        typer.echo(str(page))
