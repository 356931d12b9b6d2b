"""The command ``ccfcpp serve``: it parses, calls and prints."""

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

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
from ccfcpp.core.config_layers import resolve
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.opening import Opening, new_path, required_out

_SCORES = (("NMI", "nmi"), ("Kappa", "kappa"), ("accuracy", "accuracy"), ("ARI", "ari"))


def add_serve(app: typer.Typer) -> None:
    """Give an application the command."""
    app.command()(serve)


def serve(
    config: Config = None,
    task: Annotated[
        Literal["cluster", "classify"], typer.Option(help="What the clients learn.")
    ] = "cluster",
    keys: Annotated[Path, typer.Option(help="Folder of server.crt, server.key and ca.crt.")] = Path(
        "keys"
    ),
    roster: Annotated[
        Path | None, typer.Option(help="Folder of the clients' .pub files; KEYS/roster otherwise.")
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where clients reach the server.")
    ] = "0.0.0.0:9092",
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
    host, port = address(listen)
    files, values = user_layers(config, {}, settings)
    console = progress_console()
    with usage_errors():
        if resume:
            opening = Opening.going_on(required_out(out), kind, *files, values, deployed=True)
        else:
            resolved = resolve(kind, task, *files, values)
            path = out or new_path(resolved.method, "deployed")
            opening = Opening.new(path, resolved)
        opening.config.privacy.refuse_deployed()
        opening.config.attack.refuse_deployed()
    resumption = f"{resume_command('serve', opening.path)} --task {task} --listen {listen}"

    require_flower()
    from ccfcpp.deployment.roster import read_roster
    from ccfcpp.deployment.serving import Gathering, experiment_for, gather, open_server
    from ccfcpp.deployment.transport import Patience

    patience = Patience(limit)
    place = roster or keys / "roster"
    named = read_roster(place)
    home = opening.path.with_name(f"{opening.path.name}-flower")
    with resumable(resumption) as should_stop, open_server(keys, place, host, port, home) as link:
        console.print(
            f"{opening.path}: waiting for {clients or len(named)} of {len(named)} clients"
        )
        saved = opening.path / "deployment.json"
        if resume and saved.exists():
            gathering = Gathering.load(saved)
        else:
            gathering = gather(link, opening.config, task, named, clients, patience, console.print)
        experiment, folder = opening.open(
            lambda chosen: experiment_for(gathering, chosen, link, patience, console.print)
        )
        gathering.save(saved)
        headline = ("nmi", "NMI") if task == "cluster" else ("accuracy", "accuracy")
        summary = run_to_end(experiment, folder, headline, should_stop)
    if json_output:
        typer.echo(json.dumps(summary))
    else:
        _print_summary(summary)


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
