"""Random numbers that depend on seed, round, client and purpose, and not on earlier draws."""

import hashlib
from dataclasses import dataclass, replace

import torch

SERVER = -1
"""Client number of the server."""

SETUP = -1
"""Round number of the draws before the first round."""


@dataclass(frozen=True)
class Randomness:
    """Source of random numbers: each is a function of ``(seed, round, client, purpose)`` alone.

    No generator is shared: the order of the clients, interruptions and the number of processes do
    not change a draw. Numbers are drawn on the CPU, so that they are the same on every device.

    Attributes:
        seed: Seed of the run, any integer.
        round: Round in which numbers are drawn; ``SETUP`` before the first round.
        client: Number of the client that draws; ``SERVER`` for the server.
    """

    seed: int
    round: int = SETUP
    client: int = SERVER

    def at_round(self, number: int) -> "Randomness":
        """Return the source for round ``number``, with the same seed and client."""
        return replace(self, round=number)

    def of_client(self, client: int) -> "Randomness":
        """Return the source for client number ``client``, with the same seed and round."""
        return replace(self, client=client)

    def integer(self, purpose: str) -> int:
        """Draw a number in [0, 2**63), equal for equal (seed, round, client, purpose)."""
        key = f"{self.seed}/{self.round}/{self.client}/{purpose}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, purpose: str) -> torch.Generator:
        """Make a CPU generator, seeded by ``integer(purpose)``."""
        return generator_of(self.integer(purpose))


def generator_of(seed: int) -> torch.Generator:
    """Make a CPU generator with a given seed."""
    return torch.Generator().manual_seed(seed)
