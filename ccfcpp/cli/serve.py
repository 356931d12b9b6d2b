"""The command ``ccfcpp serve``: it parses, calls and prints."""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.attendance import Attendance
from ccfcpp.cli.header import protection
from ccfcpp.cli.options import AsJson, Config, Out, Resume, Settings
from ccfcpp.cli.terminal import (
    print_facts,
    progress_console,
    resumable,
    resume_command,
    run_to_end,
    traffic_rows,
    usage_errors,
    user_layers,
)
from ccfcpp.clustering.methods import refuse_unused
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, resolve
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import counted
from ccfcpp.data.registry import DATASETS
from ccfcpp.deployment.trial import FOLDER, HOST, PORT, make_trial_keys, refuse_elsewhere
from ccfcpp.privacy.in_words import trust_rows
from ccfcpp.runs.opening import Opening, new_path, required_out
from ccfcpp.runs.paths import RunPaths

if TYPE_CHECKING:
    from ccfcpp.deployment.charter import Charter
    from ccfcpp.deployment.experiment import DeployedExperiment

_FLAGS = (
    flags.ANY_METHOD,
    flags.CLUSTERS,
    flags.TRAINING_ROUNDS,
    *flags.PRIVACY,
    flags.SEED,
    flags.DEVICE,
)
_OWN_IMAGES: Tree = {"dataset": "the clients' own images"}
"""Where no file names a data set whose preset should hold."""
_SCORES = (("NMI", "nmi"), ("Kappa", "kappa"), ("accuracy", "accuracy"), ("ARI", "ari"))


def add_serve(app: typer.Typer) -> None:
    """Give an application the command."""
    app.command()(serve)


@flags.keyed(*_FLAGS)
def serve(
    named: flags.Named,
    config: Config = None,
    task: Annotated[
        Literal["cluster", "classify"], typer.Option(help="What the clients learn.")
    ] = "cluster",
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of server.crt, server.key and ca.crt; keys otherwise."),
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="Folder of the clients' .pub files; KEYS/roster otherwise.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where clients reach the server; 0.0.0.0:9092 otherwise."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Try it out on this machine alone: all keys are made in keys/trial."
        ),
    ] = False,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Begin with so many of the roster; all otherwise.")
    ] = None,
    limit: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="What a client has for an exchange.")
    ] = 600.0,
    out: Out = None,
    resume: Resume = False,
    settings: Settings = None,
    json_output: AsJson = False,
) -> None:
    """Run a federation whose clients are on other machines (ccfcpp join)."""
    from ccfcpp.clustering.config import ClusterConfig
    from supervised.config import ClassifyConfig

    kind: Any = ClusterConfig if task == "cluster" else ClassifyConfig
    listen = listen or (f"{HOST}:{PORT}" if insecure else f"0.0.0.0:{PORT}")
    host, port = address(listen)
    keys = keys or (FOLDER if insecure else Path("keys"))
    if insecure:
        check_trial(host, roster, clients, resume)
    files, values = user_layers(config, named, settings, [task])
    layers = [_OWN_IMAGES, *files, values]
    with usage_errors():
        if resume:
            opening = Opening.going_on(required_out(out), kind, *files, values, deployed=True)
        else:
            resolved = resolve(kind, task, *layers)
            if task == "cluster":
                refuse_unused([key for key, _ in flatten(values)], [resolved.method])
            opening = Opening.new(out or new_path(resolved.method, "deployed"), resolved)
        opening.config.attack.refuse_deployed()

    require_flower()
    from ccfcpp.deployment.gathering import Gathering
    from ccfcpp.deployment.roster import read_roster
    from ccfcpp.deployment.serving import experiment_for, gather, open_server, wait_for_clients
    from ccfcpp.deployment.transport import Patience

    patience = Patience(limit)
    place = roster or keys / "roster"
    console = progress_console()
    if insecure:
        make_trial_keys(keys, clients or 0)
        console.print(f"keys of the server and of all clients lie in {keys}, on this machine alone")
    admitted = read_roster(place)
    attendance = Attendance(console, admitted)
    home = opening.path.with_name(f"{opening.path.name}-flower")
    resumption = f"{resume_command('serve', opening.path)} --task {task} --listen {listen}"
    resumption += " --insecure" * insecure
    with resumable(resumption) as should_stop, open_server(keys, place, host, port, home) as link:
        saved = RunPaths(opening.path).deployment
        if resume and saved.exists():
            gathering = Gathering.load(saved)
            there = len(gathering.members)
            console.print(f"{opening.path}: waiting for {clients or there} of {there} clients")
            wait_for_clients(link, gathering, clients)
        else:
            wanted = clients or len(admitted)
            console.print(f"{opening.path}: waiting for {wanted} of {len(admitted)} clients")
            with attendance.shown():
                gathering = gather(
                    link, opening.config, task, admitted, clients, patience, attendance.told
                )
            opening = fitted(opening, gathering.charter, layers)
            gathering = gathering.told(opening.config)
        attendance.begin(gathering.members)
        experiment, folder = opening.open(
            lambda chosen: experiment_for(gathering, chosen, link, patience, attendance.stands)
        )
        gathering.save(saved)
        for line in (header(experiment, gathering.seconds), *protection(experiment)):
            console.print(line)
        headline = ("nmi", "NMI") if task == "cluster" else ("accuracy", "accuracy")
        summary = run_to_end(experiment, folder, headline, should_stop, below=attendance)
    if json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


def check_trial(host: str, roster: Path | None, clients: int | None, resume: bool) -> None:
    """Raise ``UsageError`` where options do not go with ``--insecure``."""
    refuse_elsewhere(host)
    if roster is not None:
        raise UsageError("--insecure makes a roster of its own: leave --roster out, or --insecure")
    if clients is None and not resume:
        raise UsageError("--insecure makes a key for each client: say how many with --clients N")


def fitted(opening: "Opening[Any]", charter: "Charter", layers: Sequence[Tree]) -> "Opening[Any]":
    """The run with settings that its clients' images ask for, under those that the user gave."""
    from ccfcpp.clustering.own_images import settings_over_a_network

    if charter.command != "cluster" or opening.config.dataset in DATASETS:
        return opening
    settings = settings_over_a_network(charter.samples, charter.image_shape)
    return replace(opening, config=resolve(type(opening.config), "cluster", settings, *layers))


def header(experiment: "DeployedExperiment", seconds: float) -> str:
    """What is about to be run, and how long it takes."""
    from ccfcpp.cli.progress import minutes
    from ccfcpp.privacy.sums.messages import EXCHANGES_OF_A_SUM

    charter, algorithm = experiment.charter, experiment.algorithm
    height, width = charter.image_shape[1:]
    state = algorithm.initial_state(experiment.randomness)
    exchanges = sum(len(algorithm.exchanges(each, state)) for each in range(algorithm.rounds))
    if experiment.privacy.secure_sums:
        exchanges *= EXCHANGES_OF_A_SUM
    there = len(experiment.members)
    return (
        f"{charter.method} on {counted(charter.samples, 'image')} of {height}x{width} pixels; "
        f"{counted(there, 'client')}; {counted(algorithm.rounds, 'round')} with about "
        f"{counted(exchanges, 'exchange')}: "
        f"{minutes(exchanges * seconds)} min on their way alone, {seconds:.1f} s each as a greeting"
    )


def address(text: str) -> tuple[str, int]:
    """Host and port.

    Raises:
        UsageError: The text is of another form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit():
        raise UsageError(f"{text!r} is no HOST:PORT: give one such as 0.0.0.0:9092")
    return host.strip("[]"), int(port)


def _print_summary(summary: dict[str, Any]) -> None:
    told = len(summary["counted_clients"])
    scores = {
        title: f"{summary[key]:.4f}" if summary[key] is not None else "no client tells"
        for title, key in _SCORES
        if key in summary
    }
    rows = {
        "images": f"{summary['samples']:,}, with {summary['connected']} clients",
        "leaves a client": ", ".join(summary["kinds"]),
        **scores,
        "scored by": f"{told} of {summary['connected']} clients",
        **trust_rows(summary),
        **traffic_rows(summary),
    }
    print_facts(f"{summary['method']} on {summary['dataset']}", rows)


def require_flower() -> None:
    """Raise ``UsageError`` where the packages that carry messages are missing."""
    if any(importlib.util.find_spec(name) is None for name in ("flwr", "cryptography")):
        raise UsageError(
            "a federation over several machines needs Flower, which is not installed: pip install "
            "'ccfcpp[flower]'"
        )
