"""The command ``ccfcpp audit``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ccfcpp.core.units import bytes_in_words

if TYPE_CHECKING:
    from ccfcpp.deployment.client.audit import Entry
    from ccfcpp.deployment.client.spending import Spending

_DELTA = 1e-5


def audit(
    state: Annotated[Path, typer.Argument(help="Folder of the client's state; KEY.state.")],
    each: Annotated[bool, typer.Option("--each", help="Show every request.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print every request as a line of JSON.")
    ] = False,
) -> None:
    """Show what a client was asked for, and what it has sent."""
    from ccfcpp.deployment.client.audit import AuditLog
    from ccfcpp.deployment.client.spending import Spending

    entries = list(AuditLog(state).read())
    if json_output:
        for entry in entries:
            typer.echo(json.dumps(asdict(entry)))
        return
    for line in map(_line, entries) if each else _runs(entries, Spending(state)):
        typer.echo(line)


def _line(entry: "Entry") -> str:
    what = "greeting" if entry.asked == "hello" else f"round {entry.round + 1}, {entry.asked}"
    done = bytes_in_words(entry.bytes) if entry.status == "done" else entry.status
    return f"{entry.time}  {entry.method}, {what}: {done} {entry.reason}".rstrip()


def _runs(entries: list["Entry"], spending: "Spending") -> list[str]:
    """Return some lines for each run, and what all of them have cost."""
    runs: dict[str, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    lines = []
    for found in runs.values():
        first, last = found[0], found[-1]
        refused = [entry for entry in found if entry.status != "done"]
        sent = bytes_in_words(sum(entry.bytes for entry in found))
        noise = "none"
        if first.privacy is not None:
            spent = spending.epsilon(_DELTA, first.run)
            noise = f"ε = {spent:.3g} spent, of {first.privacy:g} that the server says"
            noise += ", with noise of the clients" if first.own_noise else ""
        lines += [
            f"{first.method} for {first.server}, {first.time} to {last.time}",
            f"  may send: {', '.join(first.kinds)}; secure sums: "
            f"{'yes' if first.secure_sums else 'no'}; differential privacy: {noise}",
            f"  {len(found)} requests, {len(refused)} refused; {sent} sent",
            *(f"  refused: {reason}" for reason in dict.fromkeys(e.reason for e in refused)),
        ]
    if total := spending.epsilon(_DELTA):
        lines.append(f"all runs together have cost ε = {total:.3g}, δ = {_DELTA:g}")
    return lines
