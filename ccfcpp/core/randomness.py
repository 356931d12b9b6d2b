"""Random numbers that depend on what they are for, never on what was drawn before."""

import hashlib
from dataclasses import dataclass, replace

import torch

SERVER = -1
"""The client number of what the server draws."""

SETUP = -1
"""The round number of what is drawn before the first round."""


@dataclass(frozen=True)
class Randomness:
    """The source of every random number: a pure function of ``(seed, round, client, purpose)``.

    No generator is shared, so neither the order of the clients, nor an interruption, nor the number
    of processes changes a draw. Numbers are drawn on the CPU, so every device sees the same ones.

    Attributes:
        seed: The run's seed, any integer.
        round: The round the numbers are for; ``SETUP`` before the first.
        client: The client they are for; ``SERVER`` for the server.
    """

    seed: int
    round: int = SETUP
    client: int = SERVER

    def at_round(self, number: int) -> "Randomness":
        """The same source at another round."""
        return replace(self, round=number)

    def of_client(self, client: int) -> "Randomness":
        """The same source for another client."""
        return replace(self, client=client)

    def integer(self, purpose: str) -> int:
        """A number in [0, 2**63), equal for equal (seed, round, client, purpose)."""
        key = f"{self.seed}/{self.round}/{self.client}/{purpose}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, purpose: str) -> torch.Generator:
        """A fresh CPU generator for one purpose."""
        return generator_of(self.integer(purpose))


def generator_of(seed: int) -> torch.Generator:
    """A fresh CPU generator with a given seed."""
    return torch.Generator().manual_seed(seed)
