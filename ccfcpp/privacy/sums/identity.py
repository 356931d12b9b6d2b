"""What protects a client of secure sums from a server that lies: identities and a floor."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from ccfcpp.engine.exchange import RefusedUpdateError

NEGLIGIBLE = 2.0**-40
"""Probability with which random holders of shares may be worse than is assumed."""
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

    def check(self, asked: int, holders: int, quorum: int) -> None:
        """Check the terms of a sum.

        A secret has ``holders`` shares, of which ``quorum`` give it. An honest holder gives its
        share of one of a client's two secrets, and a colluder its shares of both. So the server
        learns both secrets of a client only if 2 · quorum <= holders + colluders among these.

        Args:
            asked: How many clients are asked.
            holders: How many of them hold shares of this client's secrets, itself among them.
            quorum: How many shares give a secret.

        Raises:
            RefusedUpdateError: They protect too little.
        """
        worst = most_drawn(self.colluders, asked - 1, holders - 1)
        if 2 * quorum > holders + worst and quorum - worst >= self.honest:
            return
        raise RefusedUpdateError(
            f"a sum of {asked} clients, in which {quorum} of {holders} shares give a secret: its "
            f"owner wants {self.honest} honest clients in each sum, also if {self.colluders} of "
            "the others collude (--honest, --colluders); give more clients, or a higher "
            "privacy.threshold"
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
class Guard:
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


@lru_cache(maxsize=4096)
def most_drawn(marked: int, others: int, drawn: int) -> int:
    """Return how many marked ones there are at most among some that are drawn at random.

    Args:
        marked: How many are marked.
        others: Of how many.
        drawn: How many are drawn, without replacement.

    Returns:
        A number that is exceeded with a probability of ``NEGLIGIBLE`` at most.
    """
    if drawn >= others:
        return min(marked, others)
    # Imported where it is needed: it is slow to import.
    from scipy.stats import hypergeom

    return int(hypergeom.isf(NEGLIGIBLE, others, min(marked, others), drawn))
