"""Progress of a server, sent to clients in a header of each response, and to the operator."""

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from ccfcpp.core.config import Section
from ccfcpp.core.units import time_in_words

HEADER = "ccfcpp-news"
"""Name of the response header with the server's progress."""
STRANGER = "this key is not on the roster"
"""Value of that header if the client's key is not on the roster."""
LEFT_OUT = "cannot take part"
"""First words of the message about a client that is refused before a run."""
MOST_SECONDS = 10**8
"""Largest time left that is stated: a client refuses more."""
_MOST_LETTERS = 500

Number = Annotated[int, Field(ge=0, lt=10**7)]


class ServerStatus(Section):
    """Progress of a server, without clients' names.

    Attributes:
        phase: ``waiting`` for clients; ``training``; or ``ending``, when the last round is over.
        there: Number of connected clients, while the server waits.
        wanted: Number of clients that the server waits for.
        round: Number of the round, from 0.
        rounds: Number of rounds.
        left: Estimated time for all remaining rounds, in seconds; None if unknown.
    """

    phase: Literal["waiting", "training", "ending"] = "waiting"
    there: Number = 0
    wanted: Number = 0
    round: Number = 0
    rounds: Number = 0
    left: Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None = None

    @staticmethod
    def read(text: str) -> "ServerStatus | None":
        """Parse a status from the value of its response header; return None if it is not valid."""
        if len(text) > _MOST_LETTERS:
            return None
        try:
            return ServerStatus.model_validate_json(text)
        except ValidationError:
            return None

    def to_json(self) -> str:
        """Return the status as JSON on one line."""
        return self.model_dump_json(exclude_defaults=True)

    @property
    def step(self) -> tuple[str, int, int]:
        """Phase, connected clients and round; a display prints a new line if these change."""
        return self.phase, self.there, self.round

    def __str__(self) -> str:
        if self.phase == "waiting":
            return f"waiting for clients: {self.there} of {self.wanted} are there"
        if self.phase == "ending":
            return "the rounds are over; the results are collected"
        left = "" if self.left is None else f", {time_in_words(self.left)} left"
        return f"training round {self.round + 1} of {self.rounds}{left}"
