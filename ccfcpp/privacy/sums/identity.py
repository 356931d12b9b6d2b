"""Protection of a client from a dishonest server: its signatures, and its owner's limits."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.privacy.sums.agreement import Terms

SIGNATURE_BYTES = 96
"""Length of a signature by a key on the curve P-384: two numbers."""


class Identity(Protocol):
    """Interface of a client's key: it signs content, and checks other clients' signatures."""

    def signed(self, content: bytes) -> bytes:
        """Return this client's signature of some content, ``SIGNATURE_BYTES`` long."""

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        """Raise ``RefusedUpdateError`` unless a client has signed the content."""


class Unsigned:
    """Identity without signatures, for clients in one process, which trust each other."""

    def signed(self, content: bytes) -> bytes:
        """Return zeros in place of a signature."""
        return bytes(SIGNATURE_BYTES)

    def check(self, client: int, signature: bytes, content: bytes) -> None:
        """Accept any signature."""


@dataclass(frozen=True)
class Floor:
    """The smallest protection that a client's owner accepts in a secure sum.

    Attributes:
        colluders: Number of other clients that may work together with the server.
        honest: The fewest honest clients whose sum the server may then learn, including this one.
    """

    colluders: int = 0
    honest: int = 2

    def check(self, terms: Terms) -> None:
        """Raise ``RefusedUpdateError`` if the terms of a sum protect too little."""
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
    """Record of a secure sum for which a client has revealed shares.

    Attributes:
        asked: The clients that were asked.
        holders: The clients that hold shares of its secrets.
        included: The clients in the sum, as far as it knows: itself, and those of whose secrets it
            holds shares.
    """

    asked: Set[int]
    holders: Sequence[int]
    included: Set[int]


@dataclass(frozen=True)
class Safeguard:
    """Settings and records that protect a client of secure sums from a dishonest server.

    Attributes:
        identity: Signs its keys, and checks the signatures of others.
        floor: The smallest protection of a sum that is accepted.
        before: The sums for which it has revealed shares, by round and index of the task. A server
            that was interrupted may ask for the same sum again, but not for one over other clients:
            the difference of the two could be a single vector. None: they are not recorded.
    """

    identity: Identity = field(default_factory=Unsigned)
    floor: Floor = Floor()
    before: dict[tuple[int, int], Before] | None = None
