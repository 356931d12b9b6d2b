"""Who takes part in a federation of machines: a live table, or a line for each change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from ccfcpp.deployment.server.transport import Standing
    from ccfcpp.engine.client import Member

_WORDS = {"away": "away", "waiting": "there", "training": "at work", "late": "late"}
_STYLES = {"away": "red", "late": "yellow", "at work": "green"}
_NOT_YET, _TOO_LATE = "not there yet", "not part of this run"
_MOST_ROWS = 30
"""Of a table, so that it fits a terminal: those that are not just there or at work come first."""


class Attendance:
    """The clients of a roster and how each fares, in lines where the console is no terminal."""

    def __init__(self, console: Console, names: Iterable[str]) -> None:
        self.console = console
        self.standings = dict.fromkeys(names, _NOT_YET)
        self.images: dict[str, int] = {}

    def told(self, name: str, what: str) -> None:
        """A client has said what it holds, or why it cannot take part."""
        self.standings[name] = what
        if not self.console.is_terminal:
            self.console.print(f"{name}: {what}")

    def begin(self, members: Iterable[Member]) -> None:
        """Those that take part are known; who comes later does not."""
        self.images = {member.name: member.samples for member in members}
        self.standings = {
            name: _TOO_LATE if standing == _NOT_YET else standing
            for name, standing in self.standings.items()
        }
        self.standings |= dict.fromkeys(self.images, "there")

    def stands(self, member: Member, before: Standing, now: Standing) -> None:
        """How a client fares has changed."""
        self.standings[member.name] = _WORDS[now]
        worth_a_line = {before, now} & {"away", "late"} and now != "training"
        if worth_a_line and not self.console.is_terminal:
            self.console.print(f"{member.name} is {_WORDS[now]}")

    def lingers(self, names: Sequence[str], seconds: float) -> None:
        """The run is over, and some clients have not got the model."""
        if not self.console.is_terminal:
            self.console.print(
                f"waiting up to {seconds:.0f} s to give the model to {', '.join(names)}"
            )

    def shown(self) -> AbstractContextManager[object]:
        """Show the table on a terminal, for as long as the context lasts."""
        if not self.console.is_terminal:
            return nullcontext()
        return Live(self, console=self.console, transient=True)

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
