"""The channel to the clients: its link, time limits and observer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ccfcpp.deployment.link.packet import Link

if TYPE_CHECKING:
    from ccfcpp.engine.client import Member

Standing = Literal["away", "waiting", "training", "late"]
"""State of a client as the server knows it: not online; online and idle; at work; or at work for
longer than the time limit."""


@dataclass(frozen=True)
class Timeouts:
    """Time limits of the server, in seconds.

    Attributes:
        answer: Time limit for the responses to a task.
        poll: Time between checks for a response.
        grace: Time by which a response may be late before it is given up. Until then its client
            counts as busy and gets no other request.
        linger: Time after the last round in which clients that come late still get the model.
    """

    answer: float = 600.0
    poll: float = 0.02
    grace: float = 3600.0
    linger: float = 60.0

    @property
    def life(self) -> float:
        """Time after which no response is expected any more."""
        return self.answer + self.grace


class Observer:
    """Observer of a server's clients, whose methods do nothing here."""

    def on_answer(self, name: str, line: str) -> None:
        """Handle a client's answer, or the reason why it cannot take part."""

    def on_standing(self, member: "Member", before: Standing, now: Standing) -> None:
        """Handle a change of a client's standing."""

    def on_linger(self, names: Sequence[str], seconds: float) -> None:
        """Handle the wait for some clients after the last round, of some seconds."""


@dataclass(frozen=True)
class Channel:
    """The server's link to its clients, with its time limits and its observer."""

    link: Link
    timeouts: Timeouts = Timeouts()
    observer: Observer = field(default_factory=Observer)
