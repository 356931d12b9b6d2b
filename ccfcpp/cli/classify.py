"""The command ``ccfcpp classify``, which trains a classifier in one or more runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING

import typer

from ccfcpp.cli import flags, terminal
from ccfcpp.cli.options import RunOptions, Seeds, ShowProfile
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.cli.single_run import Rows, RunDisplay
from ccfcpp.core.config_layers import Layers
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.runs.paths import RunPaths, Summary, new_path, required_out
from ccfcpp.studies.grids import PlannedRun, StudySpec, split_axes, study_spec, without_grids
from supervised.api import CLASSIFICATION
from supervised.classifiers import title_of
from supervised.config import ClassifyConfig

if TYPE_CHECKING:
    from ccfcpp.runs.folder import RunFolder
    from ccfcpp.runs.run import AnyRun
    from ccfcpp.studies.classification import ClassificationTable
    from ccfcpp.studies.study import Study

FLAGS = (
    flags.DATASET,
    *flags.several(flags.ALPHA, flags.CLASSES_PER_CLIENT),
    flags.PARTITION,
    *flags.several(
        flags.METHOD,
        flags.DECORR,
        flags.BETA,
        flags.MODEL,
        flags.CLIENTS,
        flags.Flag("training.rounds"),
        flags.Flag("training.local_epochs"),
        *flags.ABSENCE,
    ),
    *flags.IMAGES,
    *flags.PRIVACY,
    *flags.HOSTILITY,
    flags.SEED,
    *flags.MACHINE,
    flags.TRACK,
)


@with_flags(FLAGS, ClassifyConfig)
def classify(options: RunOptions, seeds: Seeds = 1, profile: ShowProfile = False) -> None:
    """Train a classifier over clients, by FedAvg or a related method, with FedDecorr or without.

    If flags have several values, such as ``--alpha=0.05,0.5``, all combinations are run.
    """
    layers = options.layers("classify", "feddecorr")
    with terminal.usage_errors():
        if "seed" in split_axes(ClassifyConfig, layers)[1]:
            raise UsageError("seed is no axis of a study: give a number of seeds by --seeds")
        single = _single(options, layers, seeds)
        study = _study(options, layers, seeds) if single is None else None
    if study is None:
        _DISPLAY.run(options, single or [], profile)
        return
    with terminal.printed_profile() if profile else nullcontext():
        _run_study(study, options.json_output)


def _single(options: RunOptions, layers: Layers, seeds: int) -> Layers | None:
    """Return the settings of a single run; None if there are several seeds or values."""
    if options.resume:
        path = required_out(options.out)
        if (paths := RunPaths(path)).study.is_file():
            return None
        several = seeds > 1 or split_axes(ClassifyConfig, layers)[1]
        if several and paths.config.is_file():
            raise UsageError(
                f"{path} holds a single run: leave out --seeds and lists to go on with it, or give "
                "another --out"
            )
        return without_grids(layers)
    spec = study_spec(ClassifyConfig, layers, seeds)
    return spec.layers(spec.cells[0]) if len(spec.cells) * seeds == 1 else None


def _study(options: RunOptions, layers: Layers, seeds: int) -> Study[ClassifyConfig]:
    """Make a new study (a set of runs), or reopen the one in ``options.out`` to resume it."""
    from ccfcpp.studies.classification import heeded_axes
    from ccfcpp.studies.growth import check_new_runs, reopen_study
    from ccfcpp.studies.study import Study

    terminal.prepare()

    def plan(spec: StudySpec) -> list[PlannedRun[ClassifyConfig]]:
        return spec.plan_runs(ClassifyConfig, "classify", heeded_axes)

    if options.resume:
        study = reopen_study(required_out(options.out), ClassifyConfig, plan, layers, seeds)
    else:
        spec = study_spec(ClassifyConfig, layers, seeds)
        runs = plan(spec)
        path = options.out or new_path("study", runs[0].config.dataset)
        RunPaths(path).refuse_if_taken()
        study = Study(path, runs, spec)
    return check_new_runs(study, layers, "classify", _check, resumed=options.resume)


def _check(runs: list[PlannedRun[ClassifyConfig]]) -> None:
    """Make the first run of each combination of settings, so that errors show before training."""
    for number, planned in enumerate(runs):
        if number == 0 or planned.axes != runs[number - 1].axes:
            CLASSIFICATION.make(planned.config, None)


def _run_study(study: Study[ClassifyConfig], json_output: bool) -> None:
    with terminal.resumable(terminal.resume_command("classify", study.path)) as should_stop:

        def run_one(title: str, experiment: AnyRun, folder: RunFolder) -> Summary:
            return terminal.run_to_end(experiment, folder, _DISPLAY.headline, should_stop, title)

        failure = None
        try:
            study.run(run_one, lambda: _tabulate(study), should_stop)
        except FederationError as error:
            failure = error
    table = _tabulate(study)
    if failure and not table.rows:
        raise failure
    if json_output:
        summaries = [summary for _, summary in study.results()]
        typer.echo(json.dumps({"out": str(study.path), "table": table.rows, "runs": summaries}))
    else:
        terminal.print_rows(f"{study.path}: {table.caption}", table.shown)
        typer.echo(f"as a page: {terminal.report_command(study.path)}")
    if failure:  # Shown after the scores of the other runs.
        raise failure


def _tabulate(study: Study[ClassifyConfig]) -> ClassificationTable:
    """Write the table of a study's finished runs to the study's folder, and return it."""
    from ccfcpp.studies.classification import tabulate
    from ccfcpp.studies.tables import as_latex, as_markdown, escape_latex

    table = tabulate(study.results())
    latex = as_latex(
        table.caption, [{k: escape_latex(v) for k, v in row.items()} for row in table.shown]
    )
    study.write_table(table.rows, f"{table.caption}\n\n{as_markdown(table.shown)}", latex)
    return table


def _worth_naming(config: ClassifyConfig) -> Iterable[flags.Flag]:
    of_kind = {"dirichlet": flags.ALPHA, "classes": flags.CLASSES_PER_CLIENT}
    degree = of_kind.get(config.partition.kind, flags.PARTITION)
    weight = [flags.BETA] if config.decorrelation.kind != "none" else []
    named = (flags.DATASET, flags.METHOD, flags.DECORR, *weight, flags.MODEL)
    return (*named, degree, flags.CLIENTS, flags.SEED)


def _rows(config: ClassifyConfig, summary: Summary) -> Rows:
    decorrelation = summary["decorrelation"]
    return {
        "images": f"{summary['training_images']:,} for training, {summary['test_images']:,} for "
        "testing",
        "model": summary["model"],
        "decorrelation": decorrelation
        + (f", beta = {summary['beta']:g}" if decorrelation != "none" else ""),
        "clients": f"{summary['connected']} connected, {summary['disconnected']} disconnected",
        "partition": config.partition.in_words,
        "rounds": f"{summary['rounds']} with {summary['local_epochs']} local epochs",
        **{key: f"{summary[key]:.4f}" for key in summary if key.split(" ")[0] == "accuracy"},
        "effective rank": _shown(summary["effective_rank"], "about so many directions are in use"),
        "tail share": _shown(
            summary["tail_share"], "of the spread, in the weaker half of directions"
        ),
    }


def _shown(figure: float | None, words: str) -> str:
    """Format a metric of a model, with its meaning ``words``; None says that the model diverged."""
    if figure is None:
        return "none: the model has diverged"
    value = "below 0.0001" if figure < 1e-4 else f"{figure:.4g}"
    return f"{value} ({words})"


_DISPLAY = RunDisplay(
    pipeline=CLASSIFICATION,
    headline=("accuracy", "accuracy"),
    system=lambda config: title_of(config.method, config.decorrelation.kind),
    details=lambda config: f"seed {config.seed}",
    worth_naming=_worth_naming,
    found=lambda experiment: {"partition.clients": len(experiment.parts)},
    rows=_rows,
)
