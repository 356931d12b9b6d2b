"""Differential privacy of a run: of its clients, or of its images."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.availability import Availability
from ccfcpp.engine.exchange import AnyExchange, AnyServerWork, Images
from ccfcpp.engine.update_format import Addends
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.accountant import (
    Budget,
    Release,
    add_to_ledger,
    check_installed,
    least_noise,
    read_ledger,
)
from ccfcpp.privacy.noise.mechanism import NoiseSource, bounds_of

Works = Sequence[AnyServerWork]

_LEAST_OWN_NOISE = 1e-6
"""Smallest noise that clients can add; with less, the integers that they send are too large."""


class Level(ABC):
    """Base class of a run's differential privacy: its noise on sums, and its budget.

    Args:
        config: Settings of privacy.
        rounds: The exchanges of each round, as far as they are known in advance.
        randomness: The run's source of random numbers, for reproducible noise.

    Attributes:
        neighbours: The difference between two data sets that cannot be told apart, in words.
        hides: What stays secret, in words.
        trusted: Who is trusted, and with what.
        public: What is not protected.
        contributors: The divisor of a mean: the expected number of clients, or of images.

    Raises:
        UsageError: The budget does not allow a round.
    """

    neighbours: str
    hides: str
    trusted: str
    public: str
    contributors: float

    def __init__(
        self, config: PrivacyConfig, rounds: Sequence[Works], randomness: Randomness
    ) -> None:
        check_installed()
        self.config = config
        self.trusted = self._trusted()
        self.randomness = randomness
        self.source = NoiseSource(randomness if config.reproducible_noise else None)
        releases = [release for works in rounds for release in self.releases(works)]
        limits = config.epsilon, config.delta, config.accountant
        self.planned = Budget(1.0, *limits)
        self.planned.spend(releases)
        if config.noise is not None and not 1e-12 <= config.noise <= 1e12:
            raise UsageError(
                KeyValue("privacy.noise", config.noise),
                " is refused: ε can be computed from 1e-12 to 1e12",
            )
        noise = config.noise or least_noise(self.planned.releases, *limits)
        self.planned.noise = noise
        self.budget = Budget(noise, *limits)
        if config.own_noise and noise < _LEAST_OWN_NOISE:
            raise UsageError(
                KeyValue("privacy.noise", noise),
                f" is too little for privacy.noise_at = clients, which "
                f"goes down to {_LEAST_OWN_NOISE:g}: give privacy.noise_at = server",
            )
        if not self.budget.allows(self.releases(rounds[0])):
            raise UsageError(
                KeyValue("privacy.epsilon", config.epsilon),
                f" does not allow one round with privacy.noise = {noise:g}: give more of either",
            )
        self.is_spent = False
        self._ledger: Path | None = None

    @abstractmethod
    def releases(self, works: Works) -> list[Release]:
        """Return the releases (published noisy sums) of a round with these exchanges."""

    def _trusted(self) -> str:
        config = self.config
        if not config.own_noise:
            seen = "sums" if config.secure_sums else "each client's part"
            return self.trusted.format(seen=seen)
        who = f"all of them but {config.colluders}" if config.colluders else "all of them"
        return (
            "no server; each client, to bound its own part, and the clients of a secure sum, "
            f"{who}, to add their parts of the noise"
        )

    def open(self, path: Path) -> None:
        """Load a run's releases so far from its ledger file; later ones are appended to it."""
        self._ledger = path
        self.budget.releases = read_ledger(path)

    def allows(self, works: Works) -> bool:
        """Return whether the budget allows a round with these exchanges; note it in `is_spent`."""
        self.is_spent = not self.budget.allows(self.releases(works))
        return not self.is_spent

    def begins(self, number: int, works: Works) -> None:
        """Record what round ``number`` spends of the budget, before it publishes anything."""
        releases = self.releases(works)
        if self._ledger is not None:
            add_to_ledger(self._ledger, number, releases)
        self.budget.spend(releases)
        self.source = self.source.of(self.randomness.at_round(number))

    def figures(self) -> dict[str, float]:
        """Return the ε spent so far, for the round's report."""
        return {"epsilon": self.budget.spent}

    def published(self, exchange: AnyExchange, totals: Addends) -> Addends:
        """Return an exchange's sums over clients with noise added, float64 by name."""
        bounds, step = bounds_of(self.config, exchange), self.config.rounding
        return bounds.add_noise(totals, self.budget.noise, self.source, step)

    def header(self) -> str:
        """Return the line on its guarantee that a run prints before its first round."""
        config = self.config
        planned = min(self.planned.spent, config.epsilon)
        line = (
            f"differential privacy, {config.level} level: (ε, δ) = ({planned:.3g}, "
            f"{config.delta:g}) at most, noise {self.budget.noise:.3g}; it hides {self.hides}; "
            f"trusted: {self.trusted}; public: {self.public}"
        )
        if config.reproducible_noise:
            line += (
                "; privacy.reproducible_noise: the noise can be drawn again and protects NOTHING"
            )
        return line

    def describe(self) -> dict[str, object]:
        """Return the facts on privacy for the run's ``summary.json``."""
        return {
            "level": self.config.level,
            "epsilon": self.budget.spent,
            "delta": self.config.delta,
            "budget": self.config.epsilon,
            "budget_ended_the_run": self.is_spent,
            "noise": self.budget.noise,
            "noise_at": "clients" if self.config.own_noise else "server",
            "accountant": self.config.accountant,
            "neighbours": self.neighbours,
            "hides": self.hides,
            "trusted": self.trusted,
            "public": self.public,
            "reproducible_noise": self.config.reproducible_noise,
        }


class ClientLevel(Level):
    """Differential privacy for clients: nobody can tell whether a client took part.

    In each round each of the N connected clients is invited with probability q (``sampled``), and
    all sums of the round are over the same clients. A mean is divided by q·N, whatever the sample.
    """

    neighbours = "one client, with all its images, is there or is not"
    hides = "whether any one client took part in the run, with all its images"
    trusted = "the server, which sees {seen} and who takes part in a round, and adds the noise"
    public = "the number of clients, and of the images of each"

    def __init__(
        self,
        config: PrivacyConfig,
        rounds: Sequence[Works],
        randomness: Randomness,
        sampled: float,
        clients: int,
        dropout: float = 0.0,
    ) -> None:
        self.sampled = sampled
        self.contributors = sampled * clients
        if config.own_noise:
            # Who takes part in a secure sum cannot be hidden from its server.
            self.neighbours = "what one client adds to all sums is there, or is 0"
            self.hides = "what any one client adds to the run, from all its images"
            self.public = "which clients take part, and the number of images of each"
        _check_no_round_fails(config, sampled * (1 - dropout), clients, len(rounds))
        super().__init__(config, rounds, randomness)

    def header(self) -> str:
        """Return the line that a run prints first, with a warning if noise dominates the sums."""
        line, times = super().header(), self.budget.noise / self.contributors
        if times >= 1:
            line += (
                f"; each number gets {times:.1f} times as much noise as all clients of a round can "
                "send together: the result will hardly depend on the images. Take more clients, or "
                "a larger epsilon"
            )
        return line

    def releases(self, works: Works) -> list[Release]:
        """Return one release for all sums of a round, which are over one sample of clients.

        In secure sums each client learns who else was asked: the sample is no secret then, and
        does not reduce the privacy loss.
        """
        sums = sum(work.exchange.travels for work in works)
        sampled = 1.0 if self.config.secure_sums else self.sampled
        return [Release(sampled, sums)] if sums else []


class ImageLevel(Level):
    """Differential privacy for images: nobody can tell whether an image was in the data.

    Clients clip what each image adds to a sum (``per_image_clipping``), and the sum gets noise.

    Raises:
        UsageError: What an image adds to the sums has no bound in one of the exchanges.
    """

    neighbours = "one image of one client is there or is not"
    hides = "whether any one image was there"
    trusted = (
        "the server, which sees {seen} and adds the noise, and each client, which bounds what an "
        "image adds"
    )
    public = "the clients, and the number of images of each"

    def __init__(
        self,
        config: PrivacyConfig,
        rounds: Sequence[Works],
        randomness: Randomness,
        system: str,
        exchanges: Iterable[AnyExchange],
        images: int,
    ) -> None:
        self.contributors = float(images)
        for exchange in exchanges:
            if exchange.travels and isinstance(exchange.images, str):
                raise UsageError(
                    KeyValue("privacy.level", "image"),
                    f": in {system}'s exchange {exchange.name!r} "
                    f"{exchange.images}; fed-scan, feddp-kmeans, fed-km and fed-fcm have this "
                    "level, and ccfc and ccfc++ have it with "
                    "training.steps=synchronised, training.pretraining=neighbours and "
                    "centroids.search=lloyd; other systems have privacy.level=client",
                )
        super().__init__(config, rounds, randomness)

    def releases(self, works: Works) -> list[Release]:
        """Return one release for each group of exchanges over the same sample of images."""
        releases: list[Release] = []
        for work in works:
            images = work.exchange.images
            if work.exchange.follows and releases:
                releases[-1] = Release(releases[-1].sampled, releases[-1].sums + 1)
            elif work.exchange.travels and isinstance(images, Images):
                releases.append(Release(images.share, 1))
        return releases


def _check_no_round_fails(config: PrivacyConfig, present: float, clients: int, rounds: int) -> None:
    """Refuse settings in which rounds are likely to have too few clients.

    A round with too few clients publishes nothing, which reveals something. So it must be almost
    impossible, even if one of the clients is left out of all rounds. ``present`` is the probability
    with which a client takes part in a round.
    """
    # Imported where it is needed: it is slow to import.
    from scipy.stats import binom

    needed = (config.threshold or 2) if config.secure_sums else 1
    if rounds * float(binom.cdf(needed - 1, clients - 1, present)) > config.delta / 1000:
        raise UsageError(
            f"availability.sample_fraction and dropout_rate leave each of {clients} clients in a "
            f"round with probability {present:g}, so that a round has fewer than the {needed} it "
            "needs too often for privacy.delta: give a larger sample_fraction, or a lower "
            "privacy.threshold"
        )


@dataclass(frozen=True)
class PoissonSampling(Availability):
    """Poisson sampling: invite each client with probability ``sample_fraction``.

    The accountant assumes this sampling. The invited clients must stay secret.

    Attributes:
        reproducible: Whether the sample is drawn from the run's seed, and so protects nothing.
    """

    reproducible: bool = False

    def taking_part(self, connected: Sequence[int], randomness: Randomness) -> list[int]:
        """Draw the clients that take part in a round; return their numbers, ascending."""
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


def sampling_of(config: PrivacyConfig) -> Callable[..., Availability]:
    """Return the constructor of a run's sampling of clients, with ``Availability``'s arguments."""
    if config.level != "client":
        return Availability
    return partial(PoissonSampling, reproducible=config.reproducible_noise)
