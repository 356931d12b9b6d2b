"""Messages of ``ccfcpp join`` to the client's owner: permanent lines, and the current status."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ccfcpp.deployment.link.server_status import ServerStatus


class StatusLine:
    """Display of a client's status for its owner.

    A terminal shows the status in its last line, which is rewritten. Elsewhere each new status is
    printed as a line, except changes within a step of the server's run.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status = console.status("") if console.is_terminal else None
        self._state: object = None

    def live(self) -> AbstractContextManager[object]:
        """Show the status on a terminal within the context."""
        return self._status or nullcontext()

    def print_line(self, text: str) -> None:
        """Print a permanent line; the status is shown again after it."""
        if self._status is not None:
            self._status.update("")
        self.console.print(text)

    def show_status(self, text: str) -> None:
        """Show the client's own status, such as that it is connecting."""
        self._show(text, text)

    def show_progress(self, status: ServerStatus) -> None:
        """Show the server's progress, from the status in its response."""
        self._show(str(status), status.step)

    def _show(self, text: str, state: object) -> None:
        if self._status is not None:
            self._status.update(Text(text))
        elif state != self._state:
            self.console.print(text)
        self._state = state
