"""Differential privacy for clients: nobody can tell whether one of them took part."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ccfcpp.core.errors import UsageError
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.exchange import ServerWork, Task
from ccfcpp.privacy.accountant import Budget, Release, check_installed, least_noise
from ccfcpp.privacy.addition import Parts
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.dp_mechanism import Bounds, NoiseSource
from ccfcpp.privacy.ledger import Ledger

Works = Sequence[ServerWork[Any, Any, Any]]


class ClientLevel:
    """The mechanism of a run, and its guard.

    In each round a client is invited with probability q. All sums of the round are over the same
    clients. A mean is divided by q N, whoever takes part.

    Args:
        config: Noise, bounds and budget.
        sampled: q.
        clients: N, the connected clients.
        rounds: The server's work in each round, as far as it can be foreseen.
        randomness: The run's source, for noise that can be drawn again.

    Raises:
        UsageError: The budget does not allow a round, or a round may be without a client.
    """

    protects = "whether any one client took part in the run at all, with all its images"
    trusted = "the server: it sees the sums, adds the noise and keeps the list of clients of a round"

    def __init__(
        self,
        config: PrivacyConfig,
        sampled: float,
        clients: int,
        rounds: Sequence[Works],
        randomness: Randomness,
    ) -> None:
        check_installed()
        self.config = config
        self.sampled = sampled
        self.contributors = sampled * clients
        self.bounds = Bounds(config.clip, config.clips)
        self.source = NoiseSource(randomness if config.reproducible_noise else None)
        planned = Budget(1.0, config.epsilon, config.delta)
        for works in rounds:
            planned.spend(self.releases(works))
        self._check_no_round_is_empty(clients, len(rounds))
        noise = config.noise or least_noise(planned.releases, config.epsilon, config.delta)
        self.budget = Budget(noise, config.epsilon, config.delta)
        self.planned = Budget(noise, config.epsilon, config.delta)
        self.planned.releases = planned.releases
        if not self.budget.allows(self.releases(rounds[0])):
            raise UsageError(
                f"privacy.epsilon = {config.epsilon:g} does not allow one round with privacy.noise "
                f"= {noise:g}: give more of either"
            )
        self._ledger: Ledger | None = None

    def _check_no_round_is_empty(self, clients: int, rounds: int) -> None:
        """A round without a client publishes nothing, which tells: it must be all but impossible."""
        chance = rounds * (1 - self.sampled) ** clients
        if chance > self.config.delta / 1000:
            raise UsageError(
                f"availability.sample_fraction = {self.sampled:g} of {clients} clients leaves a "
                "round without any too often for privacy.delta: give a larger fraction"
            )

    def releases(self, works: Works) -> list[Release]:
        """What a round publishes."""
        sums = sum(work.exchange.travels for work in works)
        return [Release(self.sampled, sums)] if sums else []

    def open(self, path: Path) -> None:
        """Go on with what a run's ledger says is spent."""
        self._ledger = Ledger(path)
        self.budget.releases = self._ledger.read()

    def allows(self, number: int, works: Works) -> bool:
        """Whether the budget has enough left for a round."""
        return self.budget.allows(self.releases(works))

    def begins(self, number: int, works: Works) -> None:
        """Spend what a round costs, before it publishes anything."""
        releases = self.releases(works)
        if self._ledger is not None:
            self._ledger.add(number, releases)
        self.budget.spend(releases)
        self.source.at_round(number)

    def figures(self) -> dict[str, float]:
        """ε so far."""
        return {"epsilon": self.budget.spent}

    def contributed(self, parts: Parts) -> Parts:
        """A client's parts, each group within its bound."""
        return self.bounds.clipped(parts)

    def published(self, task: Task, totals: Parts) -> Parts:
        """The totals with their noise."""
        return self.bounds.noised(totals, self.budget.noise, self.source)

    def header(self) -> str:
        """What a run says before its first round."""
        config = self.config
        planned = min(self.planned.spent, config.epsilon)
        warning = (
            "; privacy.reproducible_noise: the noise can be drawn again, and protects NOTHING"
            if config.reproducible_noise
            else ""
        )
        return (
            f"differential privacy, {config.level} level: (ε, δ) = ({planned:.3g}, {config.delta:g}) "
            f"at most, noise {self.budget.noise:.3g}, hides {self.protects}; trusted: {self.trusted}"
            f"{warning}"
        )

    def describe(self) -> dict[str, object]:
        """What a summary says of it."""
        return {
            "level": self.config.level,
            "epsilon": self.budget.spent,
            "delta": self.config.delta,
            "budget": self.config.epsilon,
            "noise": self.budget.noise,
            "sampled": self.sampled,
            "neighbours": "one client, with all its images, is there or is not",
            "hides": self.protects,
            "trusted": self.trusted,
            "public": "the number of clients and of the images of each",
            "reproducible_noise": self.config.reproducible_noise,
        }
