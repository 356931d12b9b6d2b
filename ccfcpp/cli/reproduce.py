"""The command ``ccfcpp reproduce``, which makes tables and figures of the papers again."""

from __future__ import annotations

import difflib
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.cli import flags, terminal
from ccfcpp.cli.options import AsJson, Settings, single_values
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.errors import UsageError

if TYPE_CHECKING:
    from ccfcpp.studies.reproduction.findings import Findings
    from ccfcpp.studies.reproduction.paper_items import Item
    from ccfcpp.studies.study import Study

_OUT = Path("runs/reproduce")


@with_flags(flags.MACHINE, ClusterConfig)
def reproduce(
    named: flags.Named,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="ITEM...", help="Tables and figures; --list shows all of them."),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the items.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run on little data, in minutes on two processors.")
    ] = False,
    dataset: Annotated[
        str | None, typer.Option(help="Make only those runs of the item that use this data set.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="J",
            min=1,
            max=1024,
            help="Number of simultaneous runs; with --quick that of the processors.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of runs and results; finished runs there are kept.")
    ] = _OUT,
    settings: Settings = None,
    json_output: AsJson = False,
) -> None:
    """Make tables and figures of the papers again, and say which of the papers' claims held."""
    from ccfcpp.reports.labels import slug
    from ccfcpp.studies.reproduction.claims import summarize_claims
    from ccfcpp.studies.reproduction.findings import compute_findings
    from ccfcpp.studies.reproduction.output import findings_as_text, scale, write
    from ccfcpp.studies.reproduction.paper_items import ITEMS
    from ccfcpp.studies.results import Result

    if show_list:
        terminal.print_facts("ccfcpp reproduce", {name: item.title for name, item in ITEMS.items()})
        return
    chosen = {name: _item(name) for name in names or []}
    if not chosen:
        raise UsageError("no item is given: name some of those that ccfcpp reproduce --list shows")
    values = single_values(named, settings)
    jobs_of = {name: _jobs(item, jobs, quick) for name, item in chosen.items()}
    terminal.prepare()
    with terminal.usage_errors():
        plans = {
            name: _plan(item, quick, values, out, named.get("data.root"), dataset)
            for name, item in chosen.items()
        }
        (out / "runs").mkdir(parents=True, exist_ok=True)
    command = f"ccfcpp reproduce {' '.join(chosen)}" + (" --quick" if quick else "")
    command += f" --dataset {shlex.quote(dataset)}" if dataset is not None else ""
    command += "".join(f" --set {shlex.quote(each)}" for each in settings or [])
    typed = {
        "--jobs": jobs,
        **{flag.option: named.get(flag.key) for flag in flags.MACHINE},
        "--out": out if out != _OUT else None,
    }
    given = {name: value for name, value in typed.items() if value is not None}
    resumption = command + "".join(f" {flag} {shlex.quote(str(v))}" for flag, v in given.items())
    items = []
    for name, item in chosen.items():
        _run(item, plans[name], jobs_of[name], resumption)
        results = [Result(run.config, plans[name].folder(run)) for run in plans[name].runs]
        findings = compute_findings(item, results)
        parts = [name, "quick" if quick else None, dataset, *map(slug, settings or [])]
        folder = out / "-".join(filter(None, parts))
        one = command.replace(" ".join(chosen), name, 1)
        write(folder, findings_as_text(item.title, one, results, findings), findings)
        said = summarize_claims(scale(results), findings.claims)
        entry = {"item": name, "title": item.title, "command": one, "scale": scale(results)}
        claims = [vars(each) for each in findings.claims]
        items.append(entry | {"verdict": said, "claims": claims, "out": str(folder)})
        if not json_output:
            _print_tables(item, findings)
            typer.echo(said)
            typer.echo(f"also in {folder}/result.md, with figures and numbers")
    if json_output:
        typer.echo(json.dumps({"items": items}))


def _item(name: str) -> Item:
    from ccfcpp.studies.reproduction.paper_items import ITEMS

    if name not in ITEMS:
        nearest = difflib.get_close_matches(name, ITEMS, n=1, cutoff=0.0)[0]
        raise UsageError(
            f"item {name!r} is unknown: did you mean {nearest!r}? ccfcpp reproduce --list shows all"
        )
    return ITEMS[name]


def _plan(
    item: Item,
    quick: bool,
    values: Tree,
    out: Path,
    data_root: str | None,
    dataset: str | None,
) -> Study[RunConfig]:
    """Plan the runs for an item (a paper's table or figure); make one per data set as a check."""
    from ccfcpp.studies.reproduction.plan import plan_item
    from ccfcpp.studies.study import Study, make_run

    root = None if data_root is None else Path(data_root)
    runs = plan_item(item, quick, values, out / "data", root, dataset)
    study = Study(out / "runs", runs)
    # Errors should show before hours of work: the first unfinished run of each data set is made.
    left = [run for run in reversed(runs) if not study.is_finished(run)]
    for config in {run.config.dataset: run.config for run in left}.values():
        make_run(config)
    return study


def _jobs(item: Item, jobs: int | None, quick: bool) -> int:
    if item.timed and jobs not in (None, 1):
        raise UsageError(
            f"--jobs {jobs}: runs whose time is measured go on one by one; leave it out"
        )
    if jobs is not None:
        return jobs
    return (os.cpu_count() or 1) if quick and not item.timed else 1


def _run(item: Item, study: Study[RunConfig], jobs: int, resumption: str) -> None:
    from ccfcpp.cli.progress import watch_runs
    from ccfcpp.studies.parallel import run_in_processes

    console = terminal.progress_console()
    console.print(item.title)
    with (
        terminal.resumable(resumption, console) as should_stop,
        watch_runs(study, console, jobs=jobs) as look,
    ):
        run_in_processes(study, jobs, look, should_stop)


def _print_tables(item: Item, findings: Findings) -> None:
    from ccfcpp.studies.reproduction.output import shown_tables

    for ours, paper in findings.tables:
        for name, rows in shown_tables(ours, paper):
            terminal.print_rows(f"{item.title}. {name}", rows)
