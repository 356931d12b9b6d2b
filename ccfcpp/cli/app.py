"""The command line: it parses, calls and prints."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import ccfcpp
from ccfcpp.cli.classify import classify
from ccfcpp.cli.compare import compare
from ccfcpp.cli.options import (
    AsJson,
    Clients,
    Clusters,
    Cohort,
    Config,
    DataRoot,
    Dataset,
    Device,
    DisconnectionRate,
    DropoutRate,
    Out,
    PartitionKind,
    Resume,
    Seed,
    Settings,
    ShowProfile,
    TensorBoard,
)
from ccfcpp.cli.report import report
from ccfcpp.cli.reproduce import reproduce
from ccfcpp.cli.terminal import (
    INTERRUPTED,
    create_run,
    new_path,
    print_facts,
    printed_profile,
    reopen_run,
    required_out,
    resumable,
    resume_command,
    run_to_end,
    traffic_rows,
    usage_errors,
    user_layers,
)
from ccfcpp.cli.theory import verify_theory
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.methods import METHODS, refuse_unused
from ccfcpp.core.config_layers import flatten, resolve
from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.data.sources import describe
from ccfcpp.runs.environment import keep_freed_memory, use_processors

app = typer.Typer(
    help="Federated clustering, and classification, of images that stay with their holders.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
# The base of typer's complaints about the command line; recent versions give it no public name.
CommandLineError: type[BaseException] = typer.BadParameter.__bases__[0]

_USAGE_ERROR, _FAILURE = 2, 1


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
        code = INTERRUPTED
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
    """Federated clustering, and classification, of images that stay with their holders."""


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
    config: Config = None,
    dataset: Dataset = None,
    method: Annotated[str | None, typer.Option(help=f"One of {', '.join(METHODS)}.")] = None,
    partition: PartitionKind = None,
    p: Annotated[
        str | None,
        typer.Option(
            "--p", metavar="P", help="Degree of skew, 0 (random) to 1 (one class a client)."
        ),
    ] = None,
    clients: Clients = None,
    clusters: Clusters = None,
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
    disconnection_rate: DisconnectionRate = None,
    dropout_rate: DropoutRate = None,
    seed: Seed = None,
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
    """Cluster images that lie with several clients, by CCFC++ or another system."""
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
        # Without the flag, a file may ask for it.
        "tensorboard": tensorboard or None,
    }
    files, values = user_layers(config, named, settings)
    keep_freed_memory()
    use_processors()
    with usage_errors():
        if resume:
            experiment, folder = reopen_run(
                required_out(out), ClusterConfig, ClusteringExperiment, *files, values
            )
        else:
            resolved = resolve(ClusterConfig, "cluster", *files, values)
            refuse_unused([key for key, _ in flatten(values)], [resolved.method])
            path = out or new_path(resolved.method, resolved.dataset)
            experiment, folder = create_run(path, resolved, ClusteringExperiment)
    resumption = resume_command("cluster", folder.path)
    with printed_profile() if profile else nullcontext(), resumable(resumption) as should_stop:
        summary = run_to_end(experiment, folder, ("nmi", "NMI"), should_stop)
    if json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


def _print_summary(summary: dict[str, Any]) -> None:
    empty = summary["clients"] - summary["connected"] - summary["disconnected"]
    rows = {
        "images": f"{summary['samples']:,}, of which clients that take part hold "
        f"{summary['held']:,}",
        "clusters": str(summary["clusters"]),
        "clients": f"{summary['connected']} connected, {summary['disconnected']} disconnected"
        + (f", {empty} without images" if empty else ""),
        "partition": summary["partition"]
        + (f", p = {summary['p']:g}" if summary["p"] is not None else ""),
        "rounds": _rounds(summary),
        "leaves a client": summary["sends"],
        **{
            title: f"{summary[key]:.4f}" if summary[key] is not None else "no labels"
            for title, key in (
                ("NMI", "nmi"),
                ("Kappa", "kappa"),
                ("accuracy", "accuracy"),
                ("ARI", "ari"),
            )
        },
    }
    title = f"{METHODS[summary['method']].title} on {summary['dataset']}"
    print_facts(title, rows | traffic_rows(summary))


def _rounds(summary: dict[str, Any]) -> str:
    rounds = summary["rounds"]
    if "pretrain_rounds" in summary:
        first = min(rounds, summary["pretrain_rounds"])
        return f"{first} pre-training + {rounds - first}"
    return str(rounds)


app.command()(compare)
app.command()(verify_theory)
app.command()(report)
app.command()(reproduce)
app.command()(classify)
