"""The command ``ccfcpp serve``, which runs the server of a federation of machines."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from ccfcpp.cli import flags, terminal
from ccfcpp.cli.bind_address import ServerOptions, address, check_server_settings, require_flower
from ccfcpp.cli.options import From, RunOptions, continuation_settings
from ccfcpp.cli.participants import Attendance
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.cli.single_run import describe_protection, size_in_words
from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.clustering.auto_settings import settings_over_a_network
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.evaluation.summary_text import evaluation_rows
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import C, Layers, merge
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import format_count, list_names
from ccfcpp.data.registry import DATASETS
from ccfcpp.deployment.keys.local import make_local_keys
from ccfcpp.deployment.link.packet import Link
from ccfcpp.deployment.server.channel import Channel, Timeouts
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.trust_summary import trust_rows
from ccfcpp.runs.paths import RunPaths, Summary
from ccfcpp.runs.pipeline import AnyPipeline, Opening
from supervised.api import CLASSIFICATION
from supervised.config import ClassifyConfig

if TYPE_CHECKING:
    from ccfcpp.deployment.keys.roster import SignedRoster
    from ccfcpp.deployment.link.run_spec import RunSpec
    from ccfcpp.deployment.server.run import DeployedRun
    from ccfcpp.runs.folder import RunFolder

_FLAGS = (
    replace(flags.METHOD, default="fed-scan, with an encoder fed-em; to classify fedavg"),
    replace(
        flags.CLUSTERS,
        help="Number of clusters k, which a clustering needs. With auto or a range such as 5-30, "
        "it is chosen from what clients send, and never by labels.",
    ),
    flags.ROUNDS,
    flags.ENCODER,
    *flags.IMAGES,
    *flags.PRIVACY,
    flags.SEED,
    flags.DEVICE,
)
_OWN_IMAGES: Tree = {"dataset": "the clients' own images"}
"""The data set if no file names one with a preset."""
_OF_CLUSTERING = {"clusters": "--clusters", "data.encoder": "--encoder"}
"""Options of clustering alone, by the key that they set."""
_HEADLINES = {"cluster": ("nmi", "NMI"), "classify": ("accuracy", "accuracy")}


class Task(StrEnum):
    """Tasks of a federation; an enumeration, since typer knows ``Literal`` only since 0.19."""

    CLUSTER = "cluster"
    CLASSIFY = "classify"


@with_flags(_FLAGS, ClusterConfig, ClassifyConfig, base={"rounds": None})
def serve(
    server: ServerOptions,
    options: RunOptions,
    task: Annotated[Task, typer.Option(help="What the clients learn.")] = Task.CLUSTER,
    run: From = None,
) -> None:
    """Run a federation whose clients are on other machines (ccfcpp join)."""
    server.check(options.resume)
    for key, flag in _OF_CLUSTERING.items():
        if task == "classify" and run is None and key in options.named:
            raise UsageError(
                f"{flag} {options.named[key]} is for clustering alone: leave it out, or --task"
            )
    pipeline: AnyPipeline = CLUSTERING if task == "cluster" else CLASSIFICATION
    layers = options.layers(task.value)
    with terminal.usage_errors():
        if run is not None:
            options, layers = _continue_run(run, options, layers, task.value, server), []
        layers = layers if options.resume else [_OWN_IMAGES, *layers]
        opening = pipeline.open(layers, options.out, options.resume, deployed=True)
        opening.config.attack.refuse_deployed()
    require_flower()
    summary = _run(opening, task.value, server)
    if options.json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


def _continue_run(
    run: Path, options: RunOptions, layers: Layers, task: str, server: ServerOptions
) -> RunOptions:
    """Make the folder of a run that continues a finished one, and return options to resume it."""
    from ccfcpp.deployment.keys.roster import read_roster
    from ccfcpp.deployment.server.follow_up import run_with_clients

    if task != "cluster":
        raise UsageError("--from goes on with clustering alone: leave --task out")
    require_flower()
    if not server.insecure:
        read_roster(server.admitted)
    out = run_with_clients(run, continuation_settings(options, layers), options.out)
    return replace(options, out=out, resume=True)


def _run(opening: Opening[RunConfig], task: str, server: ServerOptions) -> Summary:
    from ccfcpp.deployment.keys.roster import read_roster
    from ccfcpp.deployment.server.control import serve_control
    from ccfcpp.deployment.server.serving import open_server

    console, stop = terminal.progress_console(), terminal.Stop()
    if server.insecure:
        make_local_keys(server.key_folder, server.clients or 0)
        where = f"in {server.key_folder}, on this machine alone"
        console.print(f"keys of the server and of all clients lie {where}")
    attendance = Attendance(console, read_roster(server.admitted))
    ends_soon = check_server_settings(opening, server, len(attendance.standings))
    roster = _signed_roster(opening, server, console)
    resumption = terminal.resume_command("serve", opening.path) + f" --task {task}{server.typed}"
    gone = f"stopped; go on with: {resumption}" if opening.goes_on else "stopped: no run has begun"
    with ExitStack() as stack:
        with terminal.interruptible(gone):
            answers = partial(attendance.answer, stop=stop)
            room = stack.enter_context(serve_control(opening.path, answers))
            host, port = address(server.address)
            link, _ = stack.enter_context(
                open_server(server.key_folder, server.admitted, host, port, room)
            )
            if ends_soon:
                console.print(ends_soon)
            link.status = lambda: attendance.server_status.to_json()
            attendance.silent = link.seconds_since_call
            experiment, folder = _wait_for_clients(opening, server, link, attendance, roster)
        with terminal.resumable(resumption, checkpoint=folder.checkpoint, stop=stop) as should_stop:
            return terminal.run_to_end(
                experiment, folder, _HEADLINES[task], should_stop, attendance=attendance
            )


def _signed_roster(
    opening: Opening[RunConfig], server: ServerOptions, console: Console
) -> SignedRoster | None:
    """Return the signed list of clients (roster) for secure sums; None if it is not needed."""
    from ccfcpp.deployment.keys.creation import roster_for_sums

    if opening.goes_on or not opening.config.section(PrivacyConfig).secure_sums:
        return None
    signed, signs = roster_for_sums(server.key_folder, server.admitted)
    if signs and not server.insecure:
        console.print(
            f"the authority's key is in {server.key_folder}: with it this server could put "
            "clients of its own into secure sums; keep it elsewhere, and use ccfcpp keys roster"
        )
    return signed


def _wait_for_clients(
    opening: Opening[RunConfig],
    server: ServerOptions,
    link: Link,
    attendance: Attendance,
    roster: SignedRoster | None,
) -> tuple[DeployedRun, RunFolder]:
    """Wait for clients; make the run with those that came, or reopen it, and its folder."""
    from ccfcpp.deployment.server.enrolling import Enroller, enrol, wait_for_clients
    from ccfcpp.deployment.server.enrolment import Enrolment
    from ccfcpp.deployment.server.run import DeployedRun

    least, admitted = server.clients, list(attendance.standings)
    channel = Channel(link, Timeouts(server.limit, linger=server.linger), attendance)
    saved = RunPaths(opening.path).deployment
    if opening.goes_on and saved.exists():
        enrolment = Enrolment.load(saved)
        enrolment = replace(enrolment, sessions=enrolment.sessions + 1)
        members = [member.name for member in enrolment.members]
        there = least and min(least, len(members))
        with attendance.wait_for(members, there, str(opening.path)):
            wait_for_clients(channel, enrolment, least)
    else:
        with attendance.wait_for(admitted, least, str(opening.path)):
            enrolment = enrol(channel, opening.config, admitted, least, roster)
        opening = with_suited_settings(opening, enrolment.spec)
        enrolment = enrolment.with_config(opening.config)

    def grew(now: Enrolment) -> None:
        now.save(saved)
        attendance.add_members(now.members)

    # If disconnected clients are simulated, they are drawn at the start, and none comes later.
    drawn = opening.config.availability.disconnection_rate > 0
    may_come = [] if drawn else admitted
    newest = least and max(1, least - len(enrolment.members))
    late = Enroller(channel, enrolment, opening.config, may_come, grew, roster, newest)
    if enrolment.waits_for_newcomers:
        with attendance.wait_for(late.names, newest):
            enrolment = late.gather()
    attendance.begin(enrolment.members, late.names)
    experiment, folder = opening.open(
        lambda chosen: DeployedRun(chosen, enrolment, channel, late.enrol_newcomers)
    )
    enrolment.save(saved)
    attendance.console.print(describe_deployed_run(experiment, enrolment.seconds))
    for line in describe_protection(experiment):
        attendance.console.print(line)
    return experiment, folder


def with_suited_settings(opening: Opening[C], spec: RunSpec) -> Opening[C]:
    """Add settings that suit the clients' images to a new clustering, below the user's own."""
    if spec.command != "cluster" or opening.goes_on:
        return opening
    hashed = spec.config.get("data", {}).get("encoder_hash")
    of_encoder: Tree = {"data": {"encoder_hash": hashed}} if hashed else {}
    if opening.config.dataset in DATASETS and not of_encoder:
        return opening
    suited = merge(settings_over_a_network(spec.samples, spec.image_shape), of_encoder)
    pipeline: AnyPipeline = CLUSTERING
    return pipeline.with_suited_settings(opening, suited)


def describe_deployed_run(experiment: DeployedRun, seconds: float) -> str:
    """Describe a run, with the time its messages take on their way: ``seconds`` an exchange."""
    from ccfcpp.cli.progress import minutes
    from ccfcpp.privacy.sums.messages import EXCHANGES_OF_A_SUM

    spec, algorithm = experiment.spec, experiment.algorithm
    exchanges = sum(map(len, algorithm.plan(algorithm.initial_state(experiment.randomness))))
    if experiment.setting.privacy.secure_sums:
        exchanges *= EXCHANGES_OF_A_SUM
    there, samples = len(experiment.members), format_count(spec.samples, spec.unit)
    return (
        f"{spec.method} on {samples} of {size_in_words(spec.image_shape)}; "
        f"{format_count(there, 'client')}; {format_count(algorithm.rounds, 'round')} with about "
        f"{format_count(exchanges, 'exchange')}: "
        f"{minutes(exchanges * seconds)} min on their way alone, {seconds:.1f} s each as in the "
        "handshake"
    )


def _print_summary(summary: Summary) -> None:
    scoring, skipped = summary["counted_clients"], summary["skipped"]
    rows = {
        f"{summary['unit']}s": f"{summary['samples']:,}, with {summary['connected']} clients"
        + (f"; {format_count(skipped, 'file')} left out" if skipped else ""),
        "leaves a client": ", ".join(summary["kinds"]),
        **(terminal.score_rows(summary) if scoring else {}),
        "scored by": f"the labels of {list_names(scoring)}"
        if scoring
        else "nobody: no client tells its labels",
        **missing_rows(summary),
        **evaluation_rows(summary),
        **trust_rows(summary),
        **terminal.traffic_rows(summary),
    }
    terminal.print_facts(f"{summary['method']} on {summary['dataset']}", rows)


def missing_rows(summary: Summary) -> dict[str, str]:
    """Return a row on the clients that have not confirmed receipt of the model, and why."""
    missing = [f"{name} ({reason})" for name, reason in summary["without_model"].items()]
    return {"did not get the model": "; ".join(missing)} if missing else {}
