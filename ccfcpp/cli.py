"""The command line: it parses, calls and prints."""

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

import ccfcpp
from ccfcpp.config import ClusterConfig
from ccfcpp.config_layers import (
    Tree,
    merge,
    nest,
    parse_assignments,
    read_yaml,
    resolve_cluster_config,
    stack,
    validate,
)
from ccfcpp.data.sources import describe
from ccfcpp.environment import keep_freed_memory, use_available_processors
from ccfcpp.errors import FederationError, UsageError
from ccfcpp.experiment import ClusteringExperiment, StoppedError
from ccfcpp.interruption import graceful_interruption
from ccfcpp.profiling import Profile, profiling
from ccfcpp.progress import RunProgress
from ccfcpp.run_folder import RunFolder

app = typer.Typer(
    help="Federated clustering: group images that stay with their holders.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
# The base of typer's complaints about the command line; recent versions give it no public name.
CommandLineError: type[BaseException] = typer.BadParameter.__bases__[0]

_USAGE_ERROR, _FAILURE, _INTERRUPTED = 2, 1, 130


def main() -> None:
    """Run the command line; bad input ends with one line on stderr and exit code 2."""
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)

    def fail(reason: object) -> None:
        errors.print("error: " + " ".join(str(reason).split()))

    try:
        code = typer.main.get_command(app)(standalone_mode=False)
    except UsageError as error:
        fail(error)
        code = _USAGE_ERROR
    except CommandLineError as error:
        fail(cast(Any, error).format_message())
        code = _USAGE_ERROR
    except (FederationError, OSError) as error:
        fail(error)
        code = _FAILURE
    except torch.OutOfMemoryError as error:
        fail(f"the device is out of memory ({error}): lower --cohort")
        code = _FAILURE
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    sys.exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ccfcpp {ccfcpp.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Federated clustering: group images that stay with their holders."""


@app.command()
def datasets(
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; $CCFCPP_DATA otherwise.")
    ] = None,
) -> None:
    """List the data sets and where they were found."""
    table = Table("name", "images", "classes", "shape", "place")
    for row in describe(data_root):
        size = "x".join(map(str, row.shape))
        table.add_row(row.name, f"{row.images:,}", str(row.classes), size, Text(row.place))
    Console().print(table)


@app.command()
def cluster(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="YAML file of settings; a data set's preset lies under."),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A data set's name, an image folder or an .npz file.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="ccfc or ccfc++.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="skew, iid, or folders (each folder is a client).")
    ] = None,
    p: Annotated[
        str | None,
        typer.Option(
            "--p", metavar="P", help="Degree of skew, 0 (random) to 1 (one class a client)."
        ),
    ] = None,
    clients: Annotated[str | None, typer.Option(metavar="M", help="Number of clients.")] = None,
    clusters: Annotated[str | None, typer.Option(metavar="K", help="Number of clusters k.")] = None,
    rounds: Annotated[
        str | None, typer.Option(metavar="R", help="Cluster-contrastive rounds.")
    ] = None,
    pretrain_rounds: Annotated[
        str | None, typer.Option(metavar="R", help="Pre-training rounds.")
    ] = None,
    eta: Annotated[
        str | None, typer.Option(metavar="E", help="Weight of the decorrelation term.")
    ] = None,
    lam: Annotated[
        str | None, typer.Option(metavar="L", help="Weight of the model-contrastive term.")
    ] = None,
    disconnection_rate: Annotated[
        str | None, typer.Option(metavar="F", help="Share of the clients absent for the whole run.")
    ] = None,
    dropout_rate: Annotated[
        str | None,
        typer.Option(metavar="F", help="Probability that a client is absent from a round."),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(metavar="S", help="Seed of all random numbers.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    cohort: Annotated[
        str | None,
        typer.Option(metavar="N", help="Clients that are trained side by side; auto by memory."),
    ] = None,
    data_root: Annotated[
        str | None, typer.Option(help="Folder of the data sets; $CCFCPP_DATA otherwise.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; a new one under runs/ otherwise.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as loss.lam=0."),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Say in the end where the time went.")
    ] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print the summary as one JSON object.")
    ] = False,
) -> None:
    """Cluster images that lie with several clients, by CCFC or CCFC++."""
    named = {
        "dataset": dataset,
        "method": method,
        "partition.kind": partition,
        "partition.p": p,
        "partition.clients": clients,
        "clusters": clusters,
        "training.rounds": rounds,
        "training.pretrain_rounds": pretrain_rounds,
        "loss.eta": eta,
        "loss.lam": lam,
        "availability.disconnection_rate": disconnection_rate,
        "availability.dropout_rate": dropout_rate,
        "seed": seed,
        "device": device,
        "compute.cohort": cohort,
        "data.root": data_root,
    }
    values = merge(_given(named), parse_assignments(settings or []))
    file = read_yaml(config) if config else {}
    keep_freed_memory()
    use_available_processors()
    try:
        if resume:
            experiment, folder = _reopen(out, file, values)
        else:
            experiment, folder = _create(out, resolve_cluster_config(file, values))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be used ({error.strerror})") from error
    with _printed_profile() if profile else nullcontext():
        summary = _run(experiment, folder)
    if json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


def _given(named: dict[str, Any]) -> Tree:
    """The flags that were given, as a tree of settings."""
    tree: Tree = {}
    for key, value in named.items():
        if value is not None:
            tree = merge(tree, nest(key, value))
    return tree


def _create(out: Path | None, config: ClusterConfig) -> tuple[ClusteringExperiment, RunFolder]:
    path = out or _new_path(config)
    # The cheap check first: loading the data may take a while.
    RunFolder(path).refuse_if_taken()
    experiment = ClusteringExperiment(config)
    return experiment, RunFolder.create(path, config)


def _reopen(out: Path | None, *layers: Tree) -> tuple[ClusteringExperiment, RunFolder]:
    if out is None:
        raise UsageError("--resume needs the folder of the run: give --out")
    folder = RunFolder.reopen(out)
    saved = folder.saved_config().model_dump(mode="json")
    config = validate(ClusterConfig, stack(saved, *layers))
    folder.refuse_other_config(config)
    return ClusteringExperiment(config), folder


def _new_path(config: ClusterConfig) -> Path:
    name = Path(config.dataset).stem
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{config.method}-{name}"


def _run(experiment: ClusteringExperiment, folder: RunFolder) -> dict[str, object]:
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    rounds = experiment.algorithm.rounds

    def announce() -> None:
        console.print("stopping after this round; press Ctrl-C again to stop at once")

    try:
        with (
            RunProgress(console, rounds) as progress,
            graceful_interruption(announce) as should_stop,
        ):
            return experiment.run(folder, progress, should_stop)
    except (StoppedError, KeyboardInterrupt):
        console.print(
            f"stopped; go on with: ccfcpp cluster --out {shlex.quote(str(folder.path))} --resume"
        )
        raise typer.Exit(_INTERRUPTED) from None


@contextmanager
def _printed_profile() -> Iterator[None]:
    """Measure a run and say where its time went, also where it is interrupted."""
    measured = None
    try:
        with profiling() as measured:
            yield
    finally:
        if measured is not None:
            _print_profile(measured)


def _print_profile(profile: Profile) -> None:
    total = sum(profile.seconds.values())
    table = Table(
        "section", *(Column(name, justify="right") for name in ("seconds", "share", "calls"))
    )
    for name, seconds in sorted(profile.seconds.items(), key=lambda item: -item[1]):
        table.add_row(name, f"{seconds:.2f}", f"{seconds / total:.1%}", f"{profile.calls[name]:,}")
    Console(stderr=True).print(table)


def _print_summary(summary: dict[str, Any]) -> None:
    table = Table(show_header=False, title=Text(f"{summary['method']} on {summary['dataset']}"))
    table.add_column()
    table.add_column(overflow="fold")
    empty = summary["clients"] - summary["connected"] - summary["disconnected"]
    rows = {
        "images": f"{summary['samples']:,}, of which clients that take part hold "
        f"{summary['held']:,}",
        "clusters": str(summary["clusters"]),
        "clients": f"{summary['connected']} connected, {summary['disconnected']} disconnected"
        + (f", {empty} without images" if empty else ""),
        "partition": summary["partition"]
        + (f", p = {summary['p']:g}" if summary["p"] is not None else ""),
        "rounds": f"{summary['pretrain_rounds']} pre-training + {summary['rounds']}",
        **{
            title: f"{summary[key]:.4f}" if summary[key] is not None else "no labels"
            for title, key in (
                ("NMI", "nmi"),
                ("Kappa", "kappa"),
                ("accuracy", "accuracy"),
                ("ARI", "ari"),
            )
        },
        "refused": f"{summary['refused_updates']} updates",
        "sent up": f"{summary['bytes_up'] / 1e6:.1f} MB",
        "sent down": f"{summary['bytes_down'] / 1e6:.1f} MB",
        "time": f"{summary['seconds']:.1f} s on {summary['device']}",
        "folder": summary["out"],
    }
    for name, value in rows.items():
        table.add_row(name, Text(value))
    Console().print(table)
