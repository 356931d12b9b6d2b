"""The channel to the clients: its link, how long it waits, and who is told of them."""

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
    """How long the server waits, in seconds.

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
    """Observer of the clients of a server. This one ignores what it is told."""

    def told(self, name: str, line: str) -> None:
        """Observe what a client has said, or why it cannot take part."""

    def stands(self, member: "Member", before: Standing, now: Standing) -> None:
        """Observe that the standing of a client has changed."""

    def lingers(self, names: Sequence[str], seconds: float) -> None:
        """Observe which clients are waited for after the last round, and for how long."""


@dataclass(frozen=True)
class Channel:
    """The way to the clients of a server, with its time limits and its observer."""

    link: Link
    timeouts: Timeouts = Timeouts()
    observer: Observer = field(default_factory=Observer)
