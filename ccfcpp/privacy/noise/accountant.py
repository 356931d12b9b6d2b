"""What releases with Gaussian noise cost: (ε, δ), by the library ``dp-accounting``.

Neighbouring sets differ by one client, or one image, that is there in one of them and not in the
other. Rényi differential privacy (Mironov 2017) is added up over all releases, with that of the
Poisson-sampled Gaussian (Mironov, Talwar and Zhang 2019).
"""

import importlib.util
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.core.errors import UsageError

if TYPE_CHECKING:
    from dp_accounting.rdp import RdpAccountant


@dataclass(frozen=True)
class Release:
    """Some sums with noise over one and the same sample of clients or images.

    Attributes:
        sampled: With which probability each of them is in the sample; 1: all are.
        sums: How many sums are published of it, each with noise of its own.
    """

    sampled: float
    sums: int


def check_installed() -> None:
    """Raise ``UsageError`` where the library is missing."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise UsageError(
            "privacy.level needs dp-accounting, which is not installed: pip install "
            "'ccfcpp[privacy]'"
        )


def epsilon(releases: Counter[Release], noise: float, delta: float) -> float:
    """ε of all releases together.

    Args:
        releases: How often each kind of them was made.
        noise: Standard deviation of each sum's noise, by what one client or image can change it.
        delta: δ.
    """
    return epsilon_of_all({noise: releases}, delta)


def epsilon_of_all(releases: Mapping[float, Counter[Release]], delta: float) -> float:
    """ε of all releases together, which are given by their noise."""
    found = [(n, release, times) for n, own in releases.items() for release, times in own.items()]
    return _epsilon(frozenset(found), delta) if found else 0.0


@lru_cache(maxsize=1024)
def _epsilon(releases: frozenset[tuple[float, Release, int]], delta: float) -> float:
    return float(_accountant(releases).get_epsilon(delta))


def _accountant(releases: Iterable[tuple[float, Release, int]]) -> "RdpAccountant":
    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    # It warns of orders that it leaves out, which only makes ε a little larger.
    logging.getLogger("absl").setLevel(logging.ERROR)
    found = RdpAccountant()
    for noise, release, times in releases:
        # Gaussians of one sample are together at most as telling as one with less noise.
        event = GaussianDpEvent(noise / math.sqrt(release.sums))
        if release.sampled < 1:
            event = PoissonSampledDpEvent(release.sampled, event)
        found.compose(event, times)
    return found


def least_noise(releases: Counter[Release], most_epsilon: float, delta: float) -> float:
    """The noise with which all releases stay within a budget, to half a hundredth.

    Raises:
        UsageError: No noise does, up to a million times what one client or image can change.
    """
    low, high = 0.0, 1.0
    while epsilon(releases, high, delta) > most_epsilon:
        low, high = high, 4 * high
        if high > 1e6:
            raise UsageError(
                f"privacy.epsilon = {most_epsilon:g} allows no run of so many rounds: give more, "
                "or fewer rounds"
            )
    while high - low > 5e-3 * high:
        middle = (low + high) / 2
        if epsilon(releases, middle, delta) > most_epsilon:
            low = middle
        else:
            high = middle
    return high


class Budget:
    """How much of a budget is spent."""

    def __init__(self, noise: float, most: float, delta: float) -> None:
        self.noise = noise
        self.most = most
        self.delta = delta
        self.releases: Counter[Release] = Counter()

    def spend(self, releases: Iterable[Release]) -> None:
        """Count releases, before they are made."""
        self.releases.update(releases)

    @property
    def spent(self) -> float:
        """ε so far."""
        return epsilon(self.releases, self.noise, self.delta)

    def allows(self, releases: Iterable[Release]) -> bool:
        """Whether there is enough left for more releases."""
        after = self.releases + Counter(releases)
        return epsilon(after, self.noise, self.delta) <= self.most * (1 + 1e-9)


class Ledger:
    """The releases of a run, each written down before it is made.

    A round that is run again after an interruption publishes anew, so it counts again: unlike the
    log, the ledger never forgets.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Counter[Release]:
        """All releases so far; a ``UsageError`` where the file is damaged."""
        found: Counter[Release] = Counter()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            try:
                found.update(
                    Release(float(q), int(sums)) for q, sums in json.loads(line)["releases"]
                )
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{self.path} is damaged, so that the budget is not known: start again with "
                    "another --out"
                ) from error
        return found

    def add(self, number: int, releases: list[Release]) -> None:
        """Write a round down; it outlasts a crash."""
        entry = {"round": number, "releases": [[each.sampled, each.sums] for each in releases]}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
