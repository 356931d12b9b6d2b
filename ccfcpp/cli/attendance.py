"""Who takes part in a federation of machines: a live table, or a line for each change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ccfcpp.core.units import named
from ccfcpp.deployment.link.server_status import LEFT_OUT, ServerStatus
from ccfcpp.deployment.server.channel import Observer, Standing

if TYPE_CHECKING:
    from ccfcpp.cli.progress import RunProgress
    from ccfcpp.cli.terminal import Stop
    from ccfcpp.engine.client import Member

_WORDS = {"away": "away", "waiting": "there", "training": "at work", "late": "late"}
_STYLES = {"away": "red", "late": "yellow", "at work": "green"}
_NOT_YET, _TOO_LATE = "not there yet", "not part of this run"
_MOST_ROWS = 30
"""Of a table, so that it fits a terminal: those that are not just there or at work come first."""


class Attendance(Observer):
    """The clients of a roster and how each fares, in lines where the console is no terminal.

    Attributes:
        standings: How each client fares, in words.
        images: How many images each has that takes part.
        wanted: For how many clients the server waits.
        progress: How far the run is, once it has begun.
        silent: Gives the seconds since something was heard of a client, by its name.
    """

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self.console = console
        self.standings = dict.fromkeys(names, _NOT_YET)
        self.images: dict[str, int] = {}
        self.wanted = len(self.standings)
        self.progress: RunProgress | None = None
        self.silent: Callable[[], Mapping[str, float]] = dict

    @contextmanager
    def awaiting(self, names: Iterable[str], wanted: int | None, run: str = "") -> Iterator[None]:
        """Show that so many of some clients, or all, are waited for within the context."""
        self.standings = dict.fromkeys(names, _NOT_YET)
        self.wanted = wanted or len(self.standings)
        missing = named(self._missing)
        line = f"waiting for {self.wanted} of {len(self.standings)} clients: {missing}"
        self.console.print(f"{run}: {line}" if run else line)
        live = Live(self, console=self.console, transient=True)
        with live if self.console.is_terminal else nullcontext():
            yield

    def told(self, name: str, line: str) -> None:
        """Show what a client holds, or why it cannot take part."""
        self.standings[name] = line
        if not self.console.is_terminal:
            waits = self.progress is None and self.server_status.there < self.wanted
            missing = self._missing if waits else []
            still = f"; still missing: {named(missing)}" if missing else ""
            self.console.print(f"{name}: {line}{still}")

    def begin(self, members: Iterable[Member], late: Collection[str] = ()) -> None:
        """Those that take part are known, and those that may still come."""
        self.standings = {
            name: _TOO_LATE if standing == _NOT_YET and name not in late else standing
            for name, standing in self.standings.items()
        }
        self.joined(members)

    def joined(self, members: Iterable[Member]) -> None:
        """All that take part by now are known."""
        new = {member.name: member.samples for member in members if member.name not in self.images}
        self.images |= new
        self.standings |= dict.fromkeys(new, "there")

    def stands(self, member: Member, before: Standing, now: Standing) -> None:
        """How a client fares has changed."""
        known, self.standings[member.name] = self.standings[member.name], _WORDS[now]
        worth_a_line = {before, now} & {"away", "late"} and now != "training"
        if worth_a_line and known != _WORDS[now] and not self.console.is_terminal:
            self.console.print(f"{member.name} is {_WORDS[now]}")

    @property
    def server_status(self) -> ServerStatus:
        """How far the server is, for its clients and its operator."""
        if self.progress is not None:
            return self.progress.server_status
        out = sum(standing.startswith(LEFT_OUT) for standing in self.standings.values())
        there = len(self.standings) - len(self._missing) - out
        return ServerStatus(there=there, wanted=self.wanted)

    def status(self) -> dict[str, Any]:
        """How far the server is and how each client fares, for its operator."""
        silent = self.silent()
        return {
            "state": str(self.server_status),
            **self.server_status.model_dump(),
            "clients": [
                {
                    "name": name,
                    "images": self.images.get(name),
                    "standing": standing,
                    "silent": silent.get(name),
                }
                for name, standing in self.standings.items()
            ],
            "remarks": list(self.progress.remarks) if self.progress else [],
        }

    def answers(self, asked: str, stop: Stop) -> dict[str, Any]:
        """Answer the server's operator: how far it is, and how it is stopped."""
        if asked == "status":
            return self.status()
        stop.ask(now=asked == "stop now")
        if self.progress is None or asked == "stop now":
            return {"state": "it stops at once"}
        return {"state": f"it stops after this round ({self.server_status})"}

    def lingers(self, names: Sequence[str], seconds: float) -> None:
        """The run is over, and some clients have not got the model."""
        if not self.console.is_terminal:
            self.console.print(
                f"waiting up to {seconds:.0f} s to give the model to {', '.join(names)}"
            )

    @property
    def _missing(self) -> list[str]:
        return [name for name, standing in self.standings.items() if standing == _NOT_YET]

    def __rich__(self) -> Table:
        table = Table("client", "images", "")
        quiet = ("there", "at work")
        order = sorted(self.standings.items(), key=lambda item: item[1] in quiet)
        for name, standing in order[:_MOST_ROWS]:
            images = f"{self.images[name]:,}" if name in self.images else ""
            table.add_row(Text(name), images, Text(standing, _STYLES.get(standing, "")))
        if len(order) > _MOST_ROWS:
            table.add_row(f"and {len(order) - _MOST_ROWS} more", "", "")
        return table
