"""How the clients of a secure sum know each other, and how many of them may be dishonest."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from ccfcpp.engine.exchange import RefusedUpdateError

NEGLIGIBLE = 2.0**-40
"""Probability with which random holders of shares may be worse than is assumed."""


class Identity(Protocol):
    """A client that others can recognise.

    Attributes:
        width: Bytes of a signature.
    """

    width: int

    def signed(self, content: bytes) -> bytes:
        """Return this client's signature of some content."""

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        """Raise ``RefusedUpdateError`` unless a client has signed some content."""


class Unsigned:
    """Clients of one process, in which there is nobody who could lie to them."""

    width = 0

    def signed(self, content: bytes) -> bytes:
        """Return nothing."""
        return b""

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
            f"a secure sum in which {quorum} of {holders} shares give a secret: its owner wants "
            f"{self.honest} honest clients in each sum, also if {self.colluders} of the others "
            "collude (--honest, --colluders)"
        )


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
