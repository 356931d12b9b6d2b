"""What protects a client of secure sums from a server that lies: identities and a floor."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.privacy.sums.terms import Terms

SIGNATURE_BYTES = 96
"""Of a signature by a key on the curve P-384: two numbers."""


class Identity(Protocol):
    """A client that others can recognise."""

    def signed(self, content: bytes) -> bytes:
        """Return this client's signature of some content, of ``SIGNATURE_BYTES``."""

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        """Raise ``RefusedUpdateError`` unless a client has signed some content."""


class Unsigned:
    """Clients of one process, in which there is nobody who could lie to them."""

    def signed(self, content: bytes) -> bytes:
        """Return zeros."""
        return bytes(SIGNATURE_BYTES)

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        """Accept what nobody has signed."""


@dataclass(frozen=True)
class Floor:
    """What the owner of a client demands of a secure sum.

    Attributes:
        colluders: How many of the other clients may work together with the server.
        honest: The fewest honest clients whose sum the server may then learn, this one among them.
    """

    colluders: int = 0
    honest: int = 2

    def check(self, terms: Terms) -> None:
        """Raise ``RefusedUpdateError`` where the terms of a sum protect too little."""
        if terms.honest(self.colluders) >= self.honest:
            return
        raise RefusedUpdateError(
            f"a sum of {terms.asked} clients, in which {terms.quorum} of {terms.holders} shares "
            f"give a secret: its owner wants {self.honest} honest clients in each sum, also if "
            f"{self.colluders} of the others collude (--honest, --colluders); give more clients, "
            "or a higher privacy.threshold"
        )


@dataclass(frozen=True)
class Before:
    """What a client has taken part in when it first showed shares for the sum of a task.

    Attributes:
        asked: The clients that were asked.
        holders: The holders of its secrets.
        included: Whose vectors were in the sum: itself, and those whose holder it was.
    """

    asked: Set[int]
    holders: Sequence[int]
    included: Set[int]


@dataclass(frozen=True)
class Safeguard:
    """What protects a client of secure sums from a server that lies.

    Attributes:
        identity: By what clients know each other.
        floor: What is demanded of a sum.
        before: The sums for which it has shown shares, by round and index of the task. A server
            that was interrupted may ask for the same sum again, and for no other one: the
            difference of two sums could be a single vector. None: nothing is kept.
    """

    identity: Identity = field(default_factory=Unsigned)
    floor: Floor = Floor()
    before: dict[tuple[int, int], Before] | None = None
