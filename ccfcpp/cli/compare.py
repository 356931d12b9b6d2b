"""The command ``ccfcpp compare``: it parses, calls and prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.options import AsJson, Config, Out, Resume, Seeds, Settings
from ccfcpp.cli.terminal import (
    column,
    given,
    progress_console,
    report_command,
    resumable,
    resume_command,
    usage_errors,
    user_layers,
)
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS, refuse_unused
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, resolve, stack
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.opening import new_path, required_out

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ccfcpp.papers.comparison import Comparison, Entry
    from ccfcpp.runs.study import Planned, Study

_SKEWS = ("0", "0.25", "0.5", "0.75", "1")
_BESIDE_PUBLISHED: Tree = {"preset": "published"}
"""Its tables have the papers' values beside ours."""
_PRESETS = ("compare", "cluster")
_FLAGS = (
    flags.DATASET,
    flags.PRESET,
    flags.PARTITION,
    *flags.several(flags.ALPHA),
    flags.CLIENTS,
    flags.CLUSTERS,
    *flags.several(*flags.ABSENCE),
    flags.SEED,
    *flags.MACHINE,
)


def add_compare(app: typer.Typer) -> None:
    """Give an application the command."""
    shown = flags.showing_defaults(
        "cluster", lambda: ClusterConfig.kind_for({}), *_FLAGS, base=_BESIDE_PUBLISHED
    )
    app.command(cls=shown)(compare)


@flags.keyed(*_FLAGS)
def compare(
    named: flags.Named,
    config: Config = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help=f"Of {', '.join(METHODS)} (default: all)."),
    ] = None,
    p: Annotated[
        str | None,
        typer.Option(
            "--p", metavar="P,Q,…", help=f"Degrees of skew (default: {','.join(_SKEWS)})."
        ),
    ] = None,
    seeds: Seeds = 1,
    jobs: Annotated[
        int, typer.Option(metavar="J", min=1, max=1024, help="How many runs go on at once.")
    ] = 1,
    out: Out = None,
    resume: Resume = False,
    settings: Settings = None,
    json_output: AsJson = False,
) -> None:
    """Compare systems on the same images, partitions and scores, as the CCFC++ paper's tables.

    Of flags with several values, such as 0,0.3 for a rate of failures, all combinations are run.
    """
    from rich.console import Console

    from ccfcpp.cli.study_progress import watched
    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.papers.comparison import COSTS_TITLE, Comparison
    from ccfcpp.runs.environment import keep_freed_memory, use_processors
    from ccfcpp.runs.parallel import run_in_processes
    from ccfcpp.runs.study import reopen_study

    flags.name_partition(named)
    axes = flags.take_axes(named, _FLAGS)
    files, values = user_layers(config, named, settings, _PRESETS)
    keep_freed_memory()
    use_processors()
    with usage_errors():
        if resume:
            changes = stack(ClusterConfig, *files, values) | axes
            changes |= given({"--methods": methods, "--p": p})
            study = reopen_study(required_out(out), ClusterConfig, changes, seeds)
        else:
            plan = _plan([_BESIDE_PUBLISHED, *files], values, methods, p, axes, seeds)
            study = _start(out, plan)

    def compared() -> Comparison:
        return Comparison(study.runs, study.results())

    def tabulated() -> Table:
        shown = compared()
        study.write_table(shown.rows, shown.as_markdown())
        return _scores(shown)[0]

    console = progress_console()
    with (
        resumable(resume_command("compare", study.path), console) as should_stop,
        watched(study, console, tabulated) as look,
    ):
        run_in_processes(study, ClusteringExperiment, jobs, look, should_stop)
    result = compared()
    if json_output:
        costs = result.costs()
        typer.echo(json.dumps({"out": str(study.path), "table": result.rows, "costs": costs}))
    else:
        Console().print(*_scores(result), _table(COSTS_TITLE, result.costs()))
        typer.echo(f"also in {study.path}/table.csv and table.md")
        typer.echo(f"as a page: {report_command(study.path)}")


def _plan(
    files: list[Tree],
    values: Tree,
    methods: str | None,
    p: str | None,
    axes: Mapping[str, list[str]],
    seeds: int,
) -> list[Planned[ClusterConfig]]:
    keys = [key for key, _ in flatten(values)]
    instead = {flag.key: flag.option for flag in _FLAGS if flag.key in axes}
    for key, option in {"method": "--methods", "partition.p": "--p", **instead}.items():
        if key in keys:
            raise UsageError(f"--set {key} is refused: a comparison has several; give {option}")
    names = flags.listed(methods, "--methods") if methods is not None else list(METHODS)
    skews = flags.listed(p, "--p") if p is not None else list(_SKEWS)
    from ccfcpp.papers.comparison import plan_comparison

    kind = resolve(ClusterConfig, "cluster", *files, values).partition.kind
    if kind == "skew":
        axes = {"partition.p": skews, **axes}
    elif p is not None:
        raise UsageError(f"--p has no effect on partition.kind = {kind!r}: leave it out")
    plan = plan_comparison(files, values, names, axes, seeds)
    refuse_unused([*keys, *axes], list(dict.fromkeys(run.config.method for run in plan)))
    return plan


def _start(out: Path | None, plan: list[Planned[ClusterConfig]]) -> Study[ClusterConfig]:
    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.clustering.setup import load_data
    from ccfcpp.runs.paths import RunPaths
    from ccfcpp.runs.study import Study

    first = plan[0].config
    path = out or new_path("comparison", first.dataset)
    RunPaths(path).refuse_if_taken()
    data = load_data(first)
    # What can be checked before hours of work is: each method, by its first run.
    for method in dict.fromkeys(run.config.method for run in plan):
        config = next(run.config for run in plan if run.config.method == method)
        ClusteringExperiment(config, data)
    return Study.create(path, plan)


def _scores(result: Comparison) -> list[Table]:
    return [_table(title, result.table(score)) for score, title in result.titles().items()]


def _table(title: str, rows: list[dict[str, Entry | str]] | list[dict[str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for row in rows for name in row))
    table = Table(*map(column, names), title=Text(title))
    for row in rows:
        table.add_row(*(_cell(row, name) for name in names))
    return table


def _cell(row: Mapping[str, Entry | str], name: str) -> Text:
    from rich.text import Text

    entry = row.get(name, "")
    if isinstance(entry, str):
        return Text(entry)
    score = Text(entry.score, style="bold" if entry.best else "")
    return score.append(f"\n{entry.published}", style="not bold") if entry.published else score
