"""The command ``ccfcpp classify``: it parses, calls and prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.header import absence, chosen_by_default, protection, setting
from ccfcpp.cli.options import AsJson, Config, Out, Resume, Seeds, Settings, ShowProfile
from ccfcpp.cli.terminal import (
    print_facts,
    print_rows,
    printed_profile,
    progress_console,
    refuse_idle,
    report_command,
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
from ccfcpp.privacy.in_words import trust_rows
from ccfcpp.runs.opening import Opening, new_path, required_out
from supervised.classifiers import title_of
from supervised.config import ClassifyConfig

if TYPE_CHECKING:
    from ccfcpp.runs.experiment import Experiment
    from ccfcpp.runs.folder import RunFolder
    from ccfcpp.runs.study import Planned, Row, Study

_HEADLINE = ("accuracy", "accuracy")
_PRESETS = ("classify", "feddecorr")
_FLAGS = (
    flags.DATASET,
    *flags.several(flags.ALPHA, flags.CLASSES_PER_CLIENT),
    flags.LABEL_PARTITION,
    *flags.several(
        flags.CLASSIFICATION_METHOD,
        flags.DECORR,
        flags.BETA,
        flags.MODEL,
        flags.TEN_CLIENTS,
        flags.TRAINING_ROUNDS,
        flags.LOCAL_EPOCHS,
        *flags.ABSENCE,
    ),
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
    """Train a classifier over clients, by FedAvg and its kin, with FedDecorr or without.

    Of flags with several values, such as 0.05,0.5 for the concentration, all combinations are run.
    """
    from ccfcpp.runs.environment import keep_freed_memory, use_processors
    from ccfcpp.runs.study import Study, plan_grid, reopen_study

    flags.name_partition(named)
    axes = flags.take_axes(named, _FLAGS)
    files, values = user_layers(config, named, settings, _PRESETS)
    keep_freed_memory()
    use_processors()
    with printed_profile() if profile else nullcontext():
        if not resume:
            plan = plan_grid(ClassifyConfig, "classify", files, values, seeds, _typed(axes))
            _start(out, plan, [*files, values], json_output)
        elif Study.plan_of(required_out(out)).is_file():
            with usage_errors():
                changes = stack(ClassifyConfig, *files, values) | axes
                study = reopen_study(required_out(out), ClassifyConfig, changes, seeds)
            _run_study(study, json_output)
        else:
            with usage_errors():
                several = seeds > 1 or bool(axes)
                experiment, folder = _reopen_run(required_out(out), files, values, several)
            _run_one(experiment, folder, json_output)


def _start(
    out: Path | None, plan: list[Planned[ClassifyConfig]], given: list[Tree], json_output: bool
) -> None:
    from ccfcpp.runs.paths import RunPaths
    from ccfcpp.runs.study import Study
    from supervised.experiment import ClassificationExperiment

    refuse_idle(given)
    first = plan[0].config
    if len(plan) == 1:
        with usage_errors():
            path = out or new_path(_name(first), first.dataset)
            experiment, folder = Opening.new(path, first).open(ClassificationExperiment)
        title = title_of(first.method, first.decorrelation.kind)
        console = progress_console()
        console.print(f"{title} on {first.dataset}, seed {first.seed}: {path}")
        found = {"partition.clients": len(experiment.parts)}
        chosen = chosen_by_default(_worth_naming(first), given, first, found)
        away = absence(experiment.absent_names)
        for line in filter(None, (setting(experiment), *protection(experiment), away, chosen)):
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


def _typed(axes: Mapping[str, list[str]]) -> dict[str, list[float | str]]:
    """Lists of text with numbers as a file would have them: equal values are one."""
    return {key: list(map(_number, texts)) for key, texts in axes.items()}


def _number(text: str) -> float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


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
    path: Path, files: list[Tree], values: Tree, several: bool
) -> tuple[Experiment[Any], RunFolder]:
    if several:
        raise UsageError(
            f"{path} holds a single run: leave out --seeds and lists to go on with it, or give "
            "another --out"
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
        typer.echo(f"as a page: {report_command(study.path)}")


def _tabulate(study: Study[ClassifyConfig]) -> tuple[list[Row], list[dict[str, str]]]:
    """Write the table of the runs so far; its rows, and the same for people."""
    from ccfcpp.runs.study import as_markdown
    from supervised.table import tabulate

    rows, shown = tabulate(study.results())
    study.write_table(rows, as_markdown(shown))
    return rows, shown


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
    title = f"{title_of(summary['method'], decorrelation)} on {summary['dataset']}"
    print_facts(title, rows | trust_rows(summary) | traffic_rows(summary))


def _shown(figure: float | None, words: str) -> str:
    """What is measured of the representations' spread, and what it means."""
    if figure is None:
        return "none: the model has diverged"
    value = "below 0.0001" if figure < 1e-4 else f"{figure:.4g}"
    return f"{value} ({words})"
