"""The command ``ccfcpp classify``: it parses, calls and prints."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ccfcpp.cli.options import (
    AsJson,
    Clients,
    Cohort,
    Config,
    DataRoot,
    Dataset,
    Device,
    DisconnectionRate,
    DropoutRate,
    Out,
    Resume,
    Seed,
    Settings,
    ShowProfile,
    TensorBoard,
)
from ccfcpp.cli.terminal import (
    create_run,
    new_path,
    print_facts,
    print_rows,
    printed_profile,
    reopen_run,
    reopen_study,
    required_out,
    resumable,
    resume_command,
    run_to_end,
    traffic_rows,
    usage_errors,
    user_layers,
)
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import (
    stack,
)
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.environment import keep_freed_memory, use_processors
from ccfcpp.runs.experiment import Experiment
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.study import (
    Planned,
    Row,
    Study,
    as_markdown,
    cell_rows,
    display,
    plan_grid,
    without_grids,
)
from supervised.config import ClassifyConfig
from supervised.experiment import ClassificationExperiment
from supervised.methods import CLASSIFIERS

_HEADLINE = ("accuracy", "accuracy")


def classify(
    config: Config = None,
    dataset: Dataset = None,
    alpha: Annotated[
        str | None,
        typer.Option(metavar="A", help="Dirichlet partition with this concentration; or inf."),
    ] = None,
    classes_per_client: Annotated[
        str | None, typer.Option(metavar="M", help="Pathological partition: M classes a client.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid, or domain (each folder is a client).")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="fedavg, fedprox, fedavgm, moon, scaffold, fednova, fedbn, fedadam, fedyogi, "
            "fedadagrad, fedrs, fedlc, fedsam or fedexp."
        ),
    ] = None,
    decorr: Annotated[
        str | None, typer.Option(help="feddecorr, decov, structured-decov or none.")
    ] = None,
    beta: Annotated[
        str | None, typer.Option(metavar="B", help="Weight of the decorrelation term.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="small, mobilenetv2, resnet18, resnet20, resnet32 or alexnet."),
    ] = None,
    clients: Clients = None,
    sample_fraction: Annotated[
        str | None, typer.Option(metavar="F", help="Share of the clients invited in a round.")
    ] = None,
    rounds: Annotated[str | None, typer.Option(metavar="R", help="Rounds.")] = None,
    local_epochs: Annotated[
        str | None, typer.Option(metavar="E", help="Local epochs of a round.")
    ] = None,
    disconnection_rate: DisconnectionRate = None,
    dropout_rate: DropoutRate = None,
    seed: Seed = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Run N seeds, and give mean and deviation.")
    ] = 1,
    device: Device = None,
    cohort: Cohort = None,
    data_root: DataRoot = None,
    tensorboard: TensorBoard = False,
    out: Out = None,
    resume: Resume = False,
    settings: Settings = None,
    profile: ShowProfile = False,
    json_output: AsJson = False,
) -> None:
    """Train a classifier over clients, by FedAvg and its kin, with FedDecorr or without."""
    named = {
        "dataset": dataset,
        "method": method,
        **_partition_flags(alpha, classes_per_client, partition),
        "partition.clients": clients,
        "decorrelation.kind": decorr,
        "decorrelation.beta": beta,
        "model.name": model,
        "training.rounds": rounds,
        "training.local_epochs": local_epochs,
        "availability.sample_fraction": sample_fraction,
        "availability.disconnection_rate": disconnection_rate,
        "availability.dropout_rate": dropout_rate,
        "seed": seed,
        "device": device,
        "compute.cohort": cohort,
        "data.root": data_root,
        # Without the flag, a file may ask for it.
        "tensorboard": tensorboard or None,
    }
    files, values = user_layers(config, named, settings)
    keep_freed_memory()
    use_processors()
    with printed_profile() if profile else nullcontext():
        if not resume:
            _start(out, plan_grid(ClassifyConfig, "classify", files, values, seeds), json_output)
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


def _partition_flags(
    alpha: str | None, classes_per_client: str | None, partition: str | None
) -> dict[str, str | None]:
    """The three ways to name a partition, of which one may be taken."""
    flags = {
        "--alpha": alpha,
        "--classes-per-client": classes_per_client,
        "--partition": partition,
    }
    taken = [flag for flag, value in flags.items() if value is not None]
    if len(taken) > 1:
        raise UsageError(f"{' and '.join(taken)} each name a partition: give one of them")
    kind = partition
    if alpha is not None:
        kind = "dirichlet"
    if classes_per_client is not None:
        kind = "pathological"
    return {
        "partition.kind": kind,
        "partition.alpha": alpha,
        "partition.classes_per_client": classes_per_client,
    }


def _start(out: Path | None, plan: list[Planned[ClassifyConfig]], json_output: bool) -> None:
    first = plan[0].config
    if len(plan) == 1:
        with usage_errors():
            path = out or new_path(first.method, first.dataset)
            experiment, folder = create_run(path, first, ClassificationExperiment)
        _run_one(experiment, folder, json_output)
        return
    path = out or new_path("study", first.dataset)
    with usage_errors():
        RunFolder(path).refuse_if_taken()
        # What can be checked before hours of work is, by the first seed of each cell.
        for number, planned in enumerate(plan):
            if number == 0 or planned.axes != plan[number - 1].axes:
                ClassificationExperiment(planned.config)
        study = Study.create(path, plan)
    _run_study(study, json_output)


def _reopen_run(
    path: Path, files: list[Tree], values: Tree, seeds: int
) -> tuple[Experiment[Any], RunFolder]:
    if seeds > 1:
        raise UsageError(
            f"{path} holds a single run: leave out --seeds to go on with it, or give another --out"
        )
    layers = (*without_grids(files), values)
    return reopen_run(path, ClassifyConfig, ClassificationExperiment, *layers)


def _run_one(experiment: Experiment[Any], folder: RunFolder, json_output: bool) -> None:
    with resumable(resume_command("classify", folder.path)) as should_stop:
        summary = run_to_end(experiment, folder, _HEADLINE, should_stop)
    if json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


def _run_study(study: Study[ClassifyConfig], json_output: bool) -> None:
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
        "effective rank": _shown(summary["effective_rank"]),
        "tail share": _shown(summary["tail_share"]),
    }
    title = f"{CLASSIFIERS[summary['method']].title} on {summary['dataset']}"
    print_facts(title, rows | traffic_rows(summary))


def _shown(figure: float | None) -> str:
    return "none: the model has diverged" if figure is None else f"{figure:.4g}"
