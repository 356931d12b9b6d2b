"""The server's connection to its clients, with time limits and an observer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ccfcpp.deployment.link.packet import Link

if TYPE_CHECKING:
    from ccfcpp.engine.client import Member

Standing = Literal["away", "waiting", "training", "late"]
"""A client's status at the server: not online; online and idle; computing an update; or computing
for longer than the time limit."""


@dataclass(frozen=True)
class Timeouts:
    """Time limits of the server, in seconds.

    Attributes:
        answer: Time limit for the responses to a task.
        poll: Time between checks for a response.
        grace: Further time until the server gives up a late response. Until then its client counts
            as busy and gets no other request.
        linger: Time after the last round in which late clients can still get the final model.
    """

    answer: float = 600.0
    poll: float = 0.02
    grace: float = 3600.0
    linger: float = 60.0

    @property
    def life(self) -> float:
        """Time from a request until the server gives up its response, in seconds."""
        return self.answer + self.grace


class Observer:
    """Callbacks for events of a server's clients; in this base class they do nothing."""

    def on_answer(self, name: str, line: str) -> None:
        """Handle a message about a client, such as why it cannot take part."""

    def on_standing(self, member: "Member", before: Standing, now: Standing) -> None:
        """Handle a change of a client's status."""

    def on_linger(self, names: Sequence[str], seconds: float) -> None:
        """Handle the start of a wait for late clients, of some seconds, after the last round."""


@dataclass(frozen=True)
class Channel:
    """The server's link to its clients, with time limits and an observer of clients' status."""

    link: Link
    timeouts: Timeouts = Timeouts()
    observer: Observer = field(default_factory=Observer)
