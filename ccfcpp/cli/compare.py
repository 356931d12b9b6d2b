"""The command ``ccfcpp compare``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli import flags, terminal
from ccfcpp.cli.options import Asked, Seeds, running
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS, check_takes
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, resolve, stack
from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import kind_of
from ccfcpp.data.registry import DATASETS
from ccfcpp.runs.given import refuse_idle
from ccfcpp.runs.paths import RunPaths, new_path, required_out

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ccfcpp.papers.comparison import Comparison, Entry
    from ccfcpp.runs.given import Given
    from ccfcpp.runs.study import Planned, Study

BESIDE_PUBLISHED: Tree = {"preset": "published"}
"""The tables have the papers' values beside ours."""
FLAGS = (
    flags.DATASET,
    flags.COMPARED_METHODS,
    flags.SKEWS,
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
Jobs = Annotated[
    int, typer.Option(metavar="J", min=1, max=1024, help="How many runs go on at once.")
]


@running(*FLAGS)
def compare(asked: Asked, seeds: Seeds = 1, jobs: Jobs = 1) -> None:
    """Compare systems on the same samples, partitions and scores, as the CCFC++ paper's tables.

    Of flags with several values, such as 0,0.3 for a rate of failures, all combinations are run.
    """
    from rich.console import Console

    from ccfcpp.cli.progress import watched
    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.papers.comparison import COSTS_TITLE, Comparison
    from ccfcpp.runs.parallel import run_in_processes
    from ccfcpp.runs.study import reopen_study

    flags.name_partition(asked.named)
    methods, p = (_taken(asked.named, flag) for flag in (flags.COMPARED_METHODS, flags.SKEWS))
    axes = flags.take_axes(asked.named, FLAGS)
    given = asked.given(FLAGS, "compare", "cluster")
    terminal.prepare()
    with terminal.usage_errors():
        if asked.resume:
            changes = stack(ClusterConfig, *given.layers) | axes
            changes |= {"--methods": methods} if methods else {}
            changes |= {"--p": p} if p else {}
            study = reopen_study(required_out(asked.out), ClusterConfig, changes, seeds)
        else:
            plan = _plan(given.above(BESIDE_PUBLISHED), methods, p, axes, seeds)
            study = _start(asked.out, plan)

    def compared() -> Comparison:
        return Comparison(study.runs, study.results())

    def tabulated() -> Table:
        shown = compared()
        study.write_table(shown.rows, shown.as_markdown())
        return _scores(shown)[0]

    console = terminal.progress_console()
    with (
        terminal.resumable(terminal.resume_command("compare", study.path), console) as should_stop,
        watched(study, console, tabulated) as look,
    ):
        run_in_processes(study, ClusteringExperiment, jobs, look, should_stop)
    result, at = compared(), study.path
    if asked.json_output:
        found = {"out": str(at), "table": result.rows, "costs": result.costs()}
        typer.echo(json.dumps(found))
    else:
        Console().print(*_scores(result), terminal.table_of(COSTS_TITLE, result.costs()))
        typer.echo(f"also in {at}/table.csv and table.md\nas a page: {terminal.report_command(at)}")


def _taken(named: flags.Named, flag: flags.Flag) -> list[str]:
    """The values of a flag, which is taken out of those that were given; none without it."""
    text = named.pop(flag.key)
    return [] if text is None else flags.listed(text, flag.option)


def _plan(
    given: Given, methods: list[str], p: list[str], axes: Mapping[str, Sequence[str]], seeds: int
) -> list[Planned[ClusterConfig]]:
    from ccfcpp.papers.comparison import plan_comparison

    keys = [key for key, _ in flatten(given.values)]
    for flag in FLAGS:
        several = flag in (flags.COMPARED_METHODS, flags.SKEWS) or flag.key in axes
        if several and flag.key in keys:
            raise UsageError(
                f"--set {flag.key} is refused: a comparison has several; give {flag.option}"
            )
    config = resolve(ClusterConfig, "cluster", *given.layers)
    kind = config.partition.kind
    if kind == "skew":
        axes = {"partition.p": p or flags.ALL_SKEWS, **axes}
    elif p:
        raise UsageError(f"--p has no effect on partition.kind = {kind!r}: leave it out")
    methods = _that_take(config.dataset, methods or list(METHODS))
    plan = plan_comparison(given.files, given.values, methods, axes, seeds)
    refuse_idle(given, [planned.config for planned in plan], "cluster", axes)
    return plan


def _that_take(dataset: str, methods: list[str]) -> list[str]:
    """The methods that cluster the data; those that are left out are named in one line."""
    kind = "images" if dataset in DATASETS else kind_of(dataset) or "images"
    # An unknown name is refused with the nearest known one where the runs are planned.
    chosen = [name for name in methods if name not in METHODS or kind in METHODS[name].takes]
    if not chosen:
        check_takes(methods[0], kind, dataset)
    if left := [name for name in methods if name not in chosen]:
        terminal.progress_console().print(f"left out, since they take no {kind}: {', '.join(left)}")
    return chosen


def _start(out: Path | None, plan: list[Planned[ClusterConfig]]) -> Study[ClusterConfig]:
    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.clustering.setup import load_data
    from ccfcpp.runs.study import Study

    path = out or new_path("comparison", plan[0].config.dataset)
    RunPaths(path).refuse_if_taken()
    data = load_data(plan[0].config)
    # What can be checked before hours of work is: each method, by its first run.
    for config in {run.config.method: run.config for run in reversed(plan)}.values():
        ClusteringExperiment(config, data)
    return Study.create(path, plan)


def _scores(result: Comparison) -> list[Table]:
    tables = {title: result.table(score) for score, title in result.titles().items()}
    return [
        terminal.table_of(
            title, [{name: _cell(entry) for name, entry in row.items()} for row in rows]
        )
        for title, rows in tables.items()
    ]


def _cell(entry: Entry | str) -> str | Text:
    from rich.text import Text

    if isinstance(entry, str):
        return entry
    score = Text(entry.score, style="bold" if entry.best else "")
    return score.append(f"\n{entry.published}", style="not bold") if entry.published else score
