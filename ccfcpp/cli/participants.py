"""Display of the clients in a federation of machines: a live table, or a line for each change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ccfcpp.cli.terminal import Stop
from ccfcpp.core.units import list_names
from ccfcpp.deployment.link.server_status import LEFT_OUT, ServerStatus
from ccfcpp.deployment.server.channel import Observer, Standing

if TYPE_CHECKING:
    from ccfcpp.cli.progress import RunProgress
    from ccfcpp.engine.client import Member

_WORDS = {"away": "away", "waiting": "there", "training": "at work", "late": "late"}
_STYLES = {"away": "red", "late": "yellow", "at work": "green"}
_NOT_YET, _TOO_LATE = "not there yet", "not part of this run"
_MOST_ROWS = 30
"""Most rows of the table; clients with problems come first."""


class Attendance(Observer):
    """Display of a server's clients and their status: a table on a terminal, or else lines.

    Attributes:
        standings: Status of each client, in words.
        images: Number of images of each client that takes part.
        wanted: Number of clients that the server waits for.
        progress: Progress of the run, once it has begun.
        silent: Returns the seconds since each client's last answer, by name.
    """

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self.console = console
        self.standings = dict.fromkeys(names, _NOT_YET)
        self.images: dict[str, int] = {}
        self.wanted = len(self.standings)
        self.progress: RunProgress | None = None
        self.silent: Callable[[], Mapping[str, float]] = dict

    @contextmanager
    def wait_for(self, names: Iterable[str], wanted: int | None, run: str = "") -> Iterator[None]:
        """Show in the context that the server waits for ``wanted`` of some clients, or for all.

        ``run`` is the folder of a run that is resumed.
        """
        self.standings = dict.fromkeys(names, _NOT_YET)
        self.wanted = wanted or len(self.standings)
        missing = list_names(self._missing)
        line = f"waiting for {self.wanted} of {len(self.standings)} clients: {missing}"
        self.console.print(f"{run}: {line}" if run else line)
        live = Live(self, console=self.console, transient=True)
        with live if self.console.is_terminal else nullcontext():
            yield

    def on_answer(self, name: str, line: str) -> None:
        """Show ``line``: a client's number of images, or why it cannot take part."""
        self.standings[name] = line
        if not self.console.is_terminal:
            waits = self.progress is None and self.server_status.there < self.wanted
            missing = self._missing if waits else []
            still = f"; still missing: {list_names(missing)}" if missing else ""
            self.console.print(f"{name}: {line}{still}")

    def begin(self, members: Iterable[Member], late: Collection[str] = ()) -> None:
        """Record which clients take part; of the others only those in ``late`` may still join."""
        self.standings = {
            name: _TOO_LATE if standing == _NOT_YET and name not in late else standing
            for name, standing in self.standings.items()
        }
        self.add_members(members)

    def add_members(self, members: Iterable[Member]) -> None:
        """Record clients that take part; those that are known already keep their status."""
        new = {member.name: member.samples for member in members if member.name not in self.images}
        self.images |= new
        self.standings |= dict.fromkeys(new, "there")

    def on_standing(self, member: Member, before: Standing, now: Standing) -> None:
        """Record a change of a client's status; without a terminal, print it if it is important."""
        known, self.standings[member.name] = self.standings[member.name], _WORDS[now]
        worth_a_line = {before, now} & {"away", "late"} and now != "training"
        if worth_a_line and known != _WORDS[now] and not self.console.is_terminal:
            self.console.print(f"{member.name} is {_WORDS[now]}")

    @property
    def server_status(self) -> ServerStatus:
        """The server's progress, as its clients and its operator are shown it."""
        if self.progress is not None:
            return self.progress.server_status
        out = sum(standing.startswith(LEFT_OUT) for standing in self.standings.values())
        there = len(self.standings) - len(self._missing) - out
        return ServerStatus(there=there, wanted=self.wanted)

    def status(self) -> dict[str, Any]:
        """Return the server's progress and each client's status, as JSON values."""
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

    def answer(self, request: str, stop: Stop) -> dict[str, Any]:
        """Answer the operator's request ``status``, ``stop`` or ``stop now``, by JSON values."""
        if request == "status":
            return self.status()
        stop.ask(now=request == "stop now")
        if self.progress is None or request == "stop now":
            return {"state": "it stops at once"}
        return {"state": f"it stops after this round ({self.server_status})"}

    def on_linger(self, names: Sequence[str], seconds: float) -> None:
        """Print, without a terminal, how long the server waits for clients without the model."""
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
