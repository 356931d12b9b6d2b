"""The command ``ccfcpp compare``, which tabulates scores of clustering methods."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ccfcpp.cli import flags, terminal
from ccfcpp.cli.options import RunOptions, Seeds
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import flatten, parse_assignments
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.studies.compare import ALL_SKEWS, BESIDE_PUBLISHED, open_comparison, write_tables

if TYPE_CHECKING:
    from ccfcpp.studies.comparison import Comparison, TableEntry

_METHODS = replace(flags.METHOD, named="methods", default="all", several=True)
_SKEWS = replace(flags.SKEW, default=",".join(f"{p:g}" for p in ALL_SKEWS), several=True)
FLAGS = (
    flags.DATASET,
    _METHODS,
    _SKEWS,
    flags.PRESET,
    flags.PARTITION,
    *flags.several(flags.CLASSES_PER_CLIENT, flags.ALPHA),
    flags.CLIENTS,
    flags.CLUSTERS,
    *flags.VECTORS,
    *flags.several(*flags.ABSENCE),
    flags.SEED,
    *flags.MACHINE,
)


@with_flags(FLAGS, ClusterConfig, base=BESIDE_PUBLISHED)
def compare(
    options: RunOptions,
    seeds: Seeds = 1,
    jobs: Annotated[
        int, typer.Option(metavar="J", min=1, max=1024, help="How many runs go on at once.")
    ] = 1,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Compare the others with this one, from 3 seeds on (default: the best of each "
            "column).",
        ),
    ] = None,
) -> None:
    """Compare systems on the same samples, partitions and scores, as in the CCFC++ paper's tables.

    If flags or settings have several values, such as --set loss.eta=0,0.1, all combinations are
    run. With --resume, new combinations are added.
    """
    from ccfcpp.cli.progress import watch_runs
    from ccfcpp.studies.comparison import COSTS_TITLE
    from ccfcpp.studies.parallel import run_in_processes

    assigned = {key for key, _ in flatten(parse_assignments(options.settings or []))}
    for flag in (_METHODS, _SKEWS):
        if flag.key in assigned:
            raise UsageError(
                f"--set {flag.key} is refused: a comparison has several; give {flag.option}"
            )
    layers = options.layers("compare", "cluster")
    terminal.prepare()
    console = terminal.progress_console()
    with terminal.usage_errors():
        study = open_comparison(
            layers, seeds, options.out, options.resume, baseline, say=console.print
        )
    encoder = study.runs[0].config.data.encoder
    resumption = terminal.resume_command("compare", study.path, encoder)
    with (
        terminal.resumable(resumption, console) as should_stop,
        watch_runs(study, console, lambda: _scores(write_tables(study))[0], jobs) as look,
    ):
        failure = None
        try:
            run_in_processes(study, jobs, look, should_stop)
        except FederationError as error:
            failure = error
    result, at = write_tables(study), study.path
    if failure and not result.costs():
        raise failure
    if options.json_output:
        typer.echo(json.dumps({"out": str(at), "table": result.rows, "costs": result.costs()}))
    else:
        Console().print(*_scores(result), terminal.make_table(COSTS_TITLE, result.costs()))
        typer.echo(
            f"also in {at}/table.csv, table.md and table.tex\n"
            f"as a page: {terminal.report_command(at)}"
        )
    if failure:  # Shown after the scores of the other runs.
        raise failure


def _scores(result: Comparison) -> list[Table]:
    tables = {caption: result.table(score) for score, caption in result.captions().items()}
    return [
        terminal.make_table(
            title, [{name: _cell(entry) for name, entry in row.items()} for row in rows]
        )
        for title, rows in tables.items()
    ]


def _cell(entry: TableEntry | str) -> str | Text:
    if isinstance(entry, str):
        return entry
    score = Text(entry.marked, style="bold" if entry.best else "")
    return score.append(f"\n{entry.published}", style="not bold") if entry.published else score
