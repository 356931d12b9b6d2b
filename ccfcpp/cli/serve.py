"""The command ``ccfcpp serve``."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.attendance import Attendance
from ccfcpp.cli.header import protection
from ccfcpp.cli.options import Asked, running
from ccfcpp.cli.terminal import (
    print_facts,
    progress_console,
    resumable,
    resume_command,
    run_to_end,
    traffic_rows,
    usage_errors,
)
from ccfcpp.clustering.own_images import settings_over_a_network
from ccfcpp.clustering.running import CLUSTERING
from ccfcpp.core.config import Tree
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import counted
from ccfcpp.data.registry import DATASETS
from ccfcpp.deployment.trial import FOLDER, HOST, PORT, make_trial_keys, refuse_elsewhere
from ccfcpp.privacy.in_words import trust_rows
from ccfcpp.runs.paths import RunPaths
from supervised.running import CLASSIFICATION

if TYPE_CHECKING:
    from ccfcpp.core.config import MethodConfig
    from ccfcpp.deployment.charter import Charter
    from ccfcpp.deployment.experiment import DeployedExperiment
    from ccfcpp.deployment.gathering import Gathering
    from ccfcpp.deployment.transport import Link, Patience
    from ccfcpp.runs.opening import Opening
    from ccfcpp.runs.paths import Summary
    from ccfcpp.runs.pipeline import AnyPipeline

_FLAGS = (
    flags.ANY_METHOD,
    flags.CLUSTERS,
    flags.ROUNDS,
    *flags.PRIVACY,
    flags.SEED,
    flags.DEVICE,
)
_OWN_IMAGES: Tree = {"dataset": "the clients' own images"}
"""Where no file names a data set whose preset should hold."""
_SCORES = (("NMI", "nmi"), ("Kappa", "kappa"), ("accuracy", "accuracy"), ("ARI", "ari"))
_HEADLINES = {"cluster": ("nmi", "NMI"), "classify": ("accuracy", "accuracy")}

Task = Annotated[Literal["cluster", "classify"], typer.Option(help="What the clients learn.")]
Keys = Annotated[
    Path | None, typer.Option(help="Folder of server.crt, server.key and ca.crt; keys otherwise.")
]
Roster = Annotated[
    Path | None, typer.Option(help="Folder of the clients' .pub files; KEYS/roster otherwise.")
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Where clients reach the server; 0.0.0.0:9092 otherwise."
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Try it out on this machine alone: all keys are made in keys/trial."
    ),
]
Clients = Annotated[
    int | None, typer.Option(min=1, help="Begin with so many of the roster; all otherwise.")
]
Limit = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="What a client has for an exchange.")
]


@running(*_FLAGS)
def serve(
    asked: Asked,
    task: Task = "cluster",
    keys: Keys = None,
    roster: Roster = None,
    listen: Listen = None,
    insecure: Insecure = False,
    clients: Clients = None,
    limit: Limit = 600.0,
) -> None:
    """Run a federation whose clients are on other machines (ccfcpp join)."""
    place = Place.of(keys, roster, listen, clients, insecure)
    if insecure:
        check_trial(place.host, roster, clients, asked.resume)
    pipeline: AnyPipeline = CLUSTERING if task == "cluster" else CLASSIFICATION
    given = asked.given([task])
    with usage_errors():
        if asked.resume:
            opening = pipeline.reopen(given, asked.out, deployed=True)
        else:
            opening = pipeline.open(given.above(_OWN_IMAGES), asked.out, label="deployed")
        opening.config.attack.refuse_deployed()
    require_flower()
    summary = _run(opening, task, place, limit)
    if asked.json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


@dataclass(frozen=True)
class Place:
    """Where a server listens, and whom it admits.

    Attributes:
        keys: Folder of the server's keys.
        roster: Folder of the clients' public keys.
        host: The address at which it listens.
        port: On which port.
        clients: With how many clients it begins; all of the roster where it is None.
        insecure: Whether all of it is tried out on one machine.
    """

    keys: Path
    roster: Path
    host: str
    port: int
    clients: int | None
    insecure: bool

    @staticmethod
    def of(
        keys: Path | None,
        roster: Path | None,
        listen: str | None,
        clients: int | None,
        insecure: bool,
    ) -> Place:
        """What the options stand for, of which any may be left out."""
        keys = keys or (FOLDER if insecure else Path("keys"))
        host, port = address(listen) if listen else (HOST if insecure else "0.0.0.0", PORT)  # noqa: S104 - a server
        return Place(keys, roster or keys / "roster", host, port, clients, insecure)


def _run(opening: Opening[MethodConfig], task: str, place: Place, limit: float) -> Summary:
    """Wait for clients, and run with them."""
    from ccfcpp.deployment.roster import read_roster
    from ccfcpp.deployment.serving import experiment_for, open_server
    from ccfcpp.deployment.transport import Patience

    console, patience = progress_console(), Patience(limit)
    if place.insecure:
        make_trial_keys(place.keys, place.clients or 0)
        console.print(
            f"keys of the server and of all clients lie in {place.keys}, on this machine alone"
        )
    attendance = Attendance(console, read_roster(place.roster))
    home = opening.path.with_name(f"{opening.path.name}-flower")
    resumption = f"{resume_command('serve', opening.path)} --task {task} "
    resumption += f"--listen {place.host}:{place.port}" + " --insecure" * place.insecure
    with (
        resumable(resumption) as should_stop,
        open_server(place.keys, place.roster, place.host, place.port, home) as link,
    ):
        opening, gathering = _gathered(opening, task, place.clients, link, patience, attendance)
        attendance.begin(gathering.members)
        experiment, folder = opening.open(
            lambda chosen: experiment_for(gathering, chosen, link, patience, attendance.stands)
        )
        gathering.save(folder.deployment)
        for line in (header(experiment, gathering.seconds), *protection(experiment)):
            console.print(line)
        return run_to_end(experiment, folder, _HEADLINES[task], should_stop, below=attendance)


def _gathered(
    opening: Opening[MethodConfig],
    task: str,
    least: int | None,
    link: Link,
    patience: Patience,
    attendance: Attendance,
) -> tuple[Opening[MethodConfig], Gathering]:
    """The run fitted to its clients' images, and who takes part in it."""
    from ccfcpp.deployment.gathering import Gathering
    from ccfcpp.deployment.serving import gather, wait_for_clients

    saved = RunPaths(opening.path).deployment
    if opening.goes_on and saved.exists():
        gathering = Gathering.load(saved)
        there = len(gathering.members)
        attendance.say(f"{opening.path}: waiting for {least or there} of {there} clients")
        wait_for_clients(link, gathering, least)
        return opening, gathering
    admitted = attendance.standings
    wanted = least or len(admitted)
    attendance.say(f"{opening.path}: waiting for {wanted} of {len(admitted)} clients")
    with attendance.shown():
        gathering = gather(link, opening.config, task, admitted, least, patience, attendance.told)
    opening = fitted(opening, gathering.charter)
    return opening, gathering.told(opening.config)


def check_trial(host: str, roster: Path | None, clients: int | None, resume: bool) -> None:
    """Raise ``UsageError`` where options do not go with ``--insecure``."""
    refuse_elsewhere(host)
    if roster is not None:
        raise UsageError("--insecure makes a roster of its own: leave --roster out, or --insecure")
    if clients is None and not resume:
        raise UsageError("--insecure makes a key for each client: say how many with --clients N")


def fitted(opening: Opening[MethodConfig], charter: Charter) -> Opening[MethodConfig]:
    """The run with settings that its clients' images ask for, under those that the user gave."""
    if charter.command != "cluster" or opening.goes_on or opening.config.dataset in DATASETS:
        return opening
    suited = settings_over_a_network(charter.samples, charter.image_shape)
    pipeline: AnyPipeline = CLUSTERING
    return pipeline.fitted(opening, suited)


def header(experiment: DeployedExperiment, seconds: float) -> str:
    """What is about to be run, and how long it takes."""
    from ccfcpp.cli.progress import minutes
    from ccfcpp.deployment.masked_messages import EXCHANGES_OF_A_SUM

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


def _print_summary(summary: Summary) -> None:
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
