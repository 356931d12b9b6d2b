"""What ``ccfcpp join`` tells its owner: lines that stay, and where it stands."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from ccfcpp.deployment.link.server_status import ServerStatus


class Telling:
    """Tells an owner how the client fares.

    A terminal shows the state in its last line, which is rewritten. Elsewhere each new state is a
    line, and of a round only its beginning.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status = console.status("") if console.is_terminal else None
        self._state: object = None

    def shown(self) -> AbstractContextManager[object]:
        """Show the state on a terminal, for as long as the context lasts."""
        return self._status or nullcontext()

    def line(self, text: str) -> None:
        """Tell something that stays; the state is as new after it."""
        if self._status is not None:
            self._status.update("")
        self.console.print(text)

    def stands(self, text: str) -> None:
        """Tell the state of the client."""
        self._tell(text, text)

    def heard(self, status: ServerStatus) -> None:
        """Tell how far the server is."""
        self._tell(str(status), status.step)

    def _tell(self, text: str, state: object) -> None:
        if self._status is not None:
            self._status.update(Text(text))
        elif state != self._state:
            self.console.print(text)
        self._state = state
