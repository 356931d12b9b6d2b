"""Poisson sampling of clients, as the accountant takes it to be."""

import secrets
from collections.abc import Sequence

import torch

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability
from ccfcpp.privacy.config import PrivacyConfig


class PoissonSampling(Availability):
    """Each client is invited by itself, with the probability ``sample_fraction``.

    Who is invited must be secret, so it does not follow from the run's seed.
    """

    reproducible = False
    """Whether it follows from the seed all the same, and protects nothing."""

    def taking_part(self, connected: Sequence[int], randomness: Randomness) -> list[int]:
        """The clients of one round, ascending."""
        return [
            client
            for client in sorted(connected)
            if self._draw(randomness.of_client(client)) < self.sample_fraction
            and not self._drops_out(randomness.of_client(client))
        ]

    def _draw(self, randomness: Randomness) -> float:
        if self.reproducible:
            return float(torch.rand((), generator=randomness.generator("Poisson sampling")))
        return secrets.SystemRandom().random()


class ReproducibleSampling(PoissonSampling):
    """The same from the run's seed, for experiments: it protects nothing."""

    reproducible = True


def sampling_of(config: PrivacyConfig) -> type[Availability]:
    """How the clients of a round are chosen."""
    if config.level != "client":
        return Availability
    return ReproducibleSampling if config.reproducible_noise else PoissonSampling
