"""The commands ``ccfcpp status`` and ``ccfcpp stop``, for a server that is running."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import make_table
from ccfcpp.core.units import time_in_words

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of the server's run.")]
_RECENT = 10.0
"""Seconds since a client's last message that count as now: it sends one every five seconds."""


def status(run: Run, json_output: AsJson = False) -> None:
    """Show the progress of a running server (ccfcpp serve), and the status of each client."""
    from ccfcpp.deployment.server.control import ask

    answer = ask(run, "status")
    if json_output:
        typer.echo(json.dumps(answer))
        return
    typer.echo(f"{run}: {answer['state']}")
    Console().print(make_table("", list(map(_row, answer["clients"]))))
    for line in answer["remarks"]:
        typer.echo(line)


def stop(
    run: Run,
    now: Annotated[
        bool, typer.Option("--now", help="Stop at once, and lose the round that is running.")
    ] = False,
) -> None:
    """Stop a running server after its round; ccfcpp serve --resume goes on with the run."""
    from ccfcpp.deployment.server.control import ask

    typer.echo(ask(run, "stop now" if now else "stop")["state"])


def _row(client: dict[str, Any]) -> dict[str, str | Text]:
    silent, images = client["silent"], client["images"]
    heard = "never" if silent is None else f"{time_in_words(silent).removeprefix('about ')} ago"
    return {
        "client": client["name"],
        "images": "" if images is None else f"{images:,}",
        "": client["standing"],
        "last heard": "now" if silent is not None and silent < _RECENT else heard,
    }
