"""The command ``ccfcpp classify``: it parses, calls and prints."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.header import chosen_by_default, protection, setting
from ccfcpp.cli.options import AsJson, Config, Out, Resume, Seeds, Settings, ShowProfile
from ccfcpp.cli.terminal import (
    print_facts,
    print_rows,
    printed_profile,
    progress_console,
    resumable,
    resume_command,
    run_to_end,
    traffic_rows,
    usage_errors,
    user_layers,
)
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import stack
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.opening import Opening, new_path, required_out
from supervised.classifiers import CLASSIFIERS
from supervised.config import ClassifyConfig

if TYPE_CHECKING:
    from ccfcpp.runs.experiment import Experiment
    from ccfcpp.runs.folder import RunFolder
    from ccfcpp.runs.study import Planned, Row, Study

_TERMS = {"feddecorr": "FedDecorr", "decov": "DeCov", "structured-decov": "Structured-DeCov"}
"""Names of the decorrelation terms."""
_HEADLINE = ("accuracy", "accuracy")
_PRESETS = ("classify", "feddecorr")
_FLAGS = (
    flags.DATASET,
    flags.ALPHA,
    flags.CLASSES_PER_CLIENT,
    flags.LABEL_PARTITION,
    flags.CLASSIFICATION_METHOD,
    flags.DECORR,
    flags.BETA,
    flags.MODEL,
    flags.TEN_CLIENTS,
    flags.TRAINING_ROUNDS,
    flags.LOCAL_EPOCHS,
    *flags.ABSENCE,
    *flags.PRIVACY,
    *flags.HOSTILITY,
    flags.SEED,
    *flags.MACHINE,
    flags.TENSORBOARD,
)


def add_classify(app: typer.Typer) -> None:
    """Give an application the command."""
    shown = flags.showing_defaults("classify", lambda: ClassifyConfig, *_FLAGS)
    app.command(cls=shown)(classify)


@flags.keyed(*_FLAGS)
def classify(
    named: flags.Named,
    config: Config = None,
    seeds: Seeds = 1,
    out: Out = None,
    resume: Resume = False,
    settings: Settings = None,
    profile: ShowProfile = False,
    json_output: AsJson = False,
) -> None:
    """Train a classifier over clients, by FedAvg and its kin, with FedDecorr or without."""
    from ccfcpp.runs.environment import keep_freed_memory, use_processors
    from ccfcpp.runs.study import Study, plan_grid, reopen_study

    flags.name_partition(named)
    files, values = user_layers(config, named, settings, _PRESETS)
    keep_freed_memory()
    use_processors()
    with printed_profile() if profile else nullcontext():
        if not resume:
            plan = plan_grid(ClassifyConfig, "classify", files, values, seeds)
            _start(out, plan, [*files, values], json_output)
        elif Study.plan_of(required_out(out)).is_file():
            with usage_errors():
                study = reopen_study(
                    required_out(out), ClassifyConfig, stack(ClassifyConfig, *files, values), seeds
                )
            _run_study(study, json_output)
        else:
            with usage_errors():
                experiment, folder = _reopen_run(required_out(out), files, values, seeds)
            _run_one(experiment, folder, json_output)


def _start(
    out: Path | None, plan: list[Planned[ClassifyConfig]], given: list[Tree], json_output: bool
) -> None:
    from ccfcpp.runs.paths import RunPaths
    from ccfcpp.runs.study import Study
    from supervised.experiment import ClassificationExperiment

    first = plan[0].config
    if len(plan) == 1:
        with usage_errors():
            path = out or new_path(_name(first), first.dataset)
            experiment, folder = Opening.new(path, first).open(ClassificationExperiment)
        title = _title(first.method, first.decorrelation.kind)
        console = progress_console()
        console.print(f"{title} on {first.dataset}, seed {first.seed}: {path}")
        for line in (setting(experiment), *protection(experiment)):
            console.print(line)
        found = {"partition.clients": len(experiment.parts)}
        if line := chosen_by_default(_worth_naming(first), given, first, found):
            console.print(line)
        _run_one(experiment, folder, json_output)
        return
    path = out or new_path("study", first.dataset)
    with usage_errors():
        RunPaths(path).refuse_if_taken()
        # What can be checked before hours of work is, by the first seed of each cell.
        for number, planned in enumerate(plan):
            if number == 0 or planned.axes != plan[number - 1].axes:
                ClassificationExperiment(planned.config)
        study = Study.create(path, plan)
    _run_study(study, json_output)


def _worth_naming(config: ClassifyConfig) -> list[flags.Flag]:
    """Flags of which a user should know what holds without them."""
    of_kind = {"dirichlet": flags.ALPHA, "pathological": flags.CLASSES_PER_CLIENT}
    degree = of_kind.get(config.partition.kind, flags.LABEL_PARTITION)
    weight = [flags.BETA] if config.decorrelation.kind != "none" else []
    named = [flags.DATASET, flags.CLASSIFICATION_METHOD, flags.DECORR, *weight, flags.MODEL]
    return [*named, degree, flags.TEN_CLIENTS, flags.SEED]


def _name(config: ClassifyConfig) -> str:
    """Of the folder: what the classifier is trained by."""
    kind = config.decorrelation.kind
    return config.method if kind == "none" else f"{config.method}-{kind}"


def _reopen_run(
    path: Path, files: list[Tree], values: Tree, seeds: int
) -> tuple[Experiment[Any], RunFolder]:
    if seeds > 1:
        raise UsageError(
            f"{path} holds a single run: leave out --seeds to go on with it, or give another --out"
        )
    from ccfcpp.runs.study import without_grids
    from supervised.experiment import ClassificationExperiment

    layers = (*without_grids(files), values)
    return Opening.going_on(path, ClassifyConfig, *layers).open(ClassificationExperiment)


def _run_one(experiment: Experiment[Any], folder: RunFolder, json_output: bool) -> None:
    resumption = resume_command("classify", folder.path)
    with resumable(resumption, checkpoint=folder.checkpoint) as should_stop:
        summary = run_to_end(experiment, folder, _HEADLINE, should_stop)
    if json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


def _run_study(study: Study[ClassifyConfig], json_output: bool) -> None:
    from supervised.experiment import ClassificationExperiment

    with resumable(resume_command("classify", study.path)) as should_stop:

        def run_one(title: str, experiment: Experiment[Any], folder: RunFolder) -> dict[str, Any]:
            return run_to_end(experiment, folder, _HEADLINE, should_stop, title)

        def finished() -> None:
            _tabulate(study)

        study.run(ClassificationExperiment, run_one, finished, should_stop)
    rows, shown = _tabulate(study)
    if json_output:
        summaries = [summary for _, summary in study.results()]
        typer.echo(json.dumps({"out": str(study.path), "table": rows, "runs": summaries}))
    else:
        print_rows(str(study.path), shown)


def _tabulate(study: Study[ClassifyConfig]) -> tuple[list[Row], list[dict[str, str]]]:
    """Write the table of the runs so far; its rows, and the same for people."""
    from ccfcpp.runs.study import as_markdown, cell_rows, display

    results = study.results()
    measures = _measures([summary for _, summary in results])
    rows = cell_rows(results, measures)
    shown = [display(row, measures) for row in rows]
    study.write_table(rows, as_markdown(shown))
    return rows, shown


def _measures(summaries: list[dict[str, Any]]) -> list[str]:
    """What tables show: also each domain's accuracy."""
    of_domains = [s for s in summaries if s["partition"] == "domain"]
    domains = dict.fromkeys(key for s in of_domains for key in s if key.startswith("accuracy "))
    return ["accuracy", *domains, "effective_rank", "tail_share", "seconds"]


def _print_summary(summary: dict[str, Any]) -> None:
    decorrelation = summary["decorrelation"]
    partition = summary["partition"]
    if summary["alpha"] is not None:
        partition += f", alpha = {summary['alpha']}"
    if summary["classes_per_client"] is not None:
        partition += f", {summary['classes_per_client']} classes a client"
    rows = {
        "images": f"{summary['training_images']:,} for training, {summary['test_images']:,} for "
        "testing",
        "model": summary["model"],
        "decorrelation": decorrelation
        + (f", beta = {summary['beta']:g}" if decorrelation != "none" else ""),
        "clients": f"{summary['connected']} connected, {summary['disconnected']} disconnected",
        "partition": partition,
        "rounds": f"{summary['rounds']} with {summary['local_epochs']} local epochs",
        **{key: f"{summary[key]:.4f}" for key in summary if key.split(" ")[0] == "accuracy"},
        "effective rank": _shown(summary["effective_rank"], "about so many directions are in use"),
        "tail share": _shown(
            summary["tail_share"], "of the spread, in the weaker half of directions"
        ),
    }
    title = f"{_title(summary['method'], decorrelation)} on {summary['dataset']}"
    print_facts(title, rows | traffic_rows(summary))


def _title(method: str, decorrelation: str) -> str:
    """A method, and the term that is added to its loss."""
    term = "" if decorrelation == "none" else f" with {_TERMS[decorrelation]}"
    return CLASSIFIERS[method].title + term


def _shown(figure: float | None, words: str) -> str:
    """What is measured of the representations' spread, and what it means."""
    if figure is None:
        return "none: the model has diverged"
    value = "below 0.0001" if figure < 1e-4 else f"{figure:.4g}"
    return f"{value} ({words})"
