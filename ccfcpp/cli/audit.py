"""The command ``ccfcpp audit``, which shows what a client was asked for, and what it has sent."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.core.units import bytes_in_words

if TYPE_CHECKING:
    from ccfcpp.deployment.client.audit import AuditEntry
    from ccfcpp.deployment.client.privacy_spent import Spending


def audit(
    state: Annotated[Path, typer.Argument(help="Folder of the client's state; KEY.state.")],
    each: Annotated[bool, typer.Option("--each", help="Show every request.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print every request as a line of JSON.")
    ] = False,
) -> None:
    """Show what a client was asked for, and what it has sent."""
    from ccfcpp.deployment.client.audit import AuditLog
    from ccfcpp.deployment.client.privacy_spent import Spending

    log = AuditLog(state)
    entries = list(log.read())
    for line in log.damaged:
        typer.echo(line, err=True)
    if json_output:
        for entry in entries:
            typer.echo(json.dumps(asdict(entry)))
        return
    for line in map(_line, entries) if each else _runs(entries, Spending(state)):
        typer.echo(line)


def _line(entry: "AuditEntry") -> str:
    what = "handshake" if entry.asked == "hello" else f"round {entry.round + 1}, {entry.asked}"
    done = bytes_in_words(entry.bytes) if entry.status == "done" else entry.status
    return f"{entry.time}  {entry.method}, {what}: {done} {entry.reason}".rstrip()


def _runs(entries: list["AuditEntry"], spending: "Spending") -> list[str]:
    """Return lines on what was sent in each run, and one on the privacy loss of all runs."""
    from ccfcpp.deployment.client.audit import DELTA, group_by_run, refusal_reasons, run_facts

    lines = []
    for own in group_by_run(entries):
        first, facts = own[0], run_facts(own, spending)
        lines += [
            f"{first.method} for {facts['server']}, {facts['from']} to {facts['to']}",
            *(f"  {key}: {facts[key]}" for key in list(facts)[3:]),
            *(f"  refused: {reason}" for reason in refusal_reasons(own)),
        ]
    if total := spending.epsilon(DELTA):
        lines.append(f"all runs together have cost ε = {total:.3g}, δ = {DELTA:g}")
    return lines
