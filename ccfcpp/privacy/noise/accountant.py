"""The privacy loss (ε, δ) of sums with Gaussian noise, by the library ``dp-accounting``.

Neighbouring data sets differ by one client, or one image, that adds to the sums in one of them and
not in the other. There are two accountants, for the Gaussian and the Poisson-sampled Gaussian:

- ``pld`` composes privacy loss distributions (Koskela, Jälkö and Honkela 2020; rounded upwards by
  Doroshenko et al., *Connect the Dots*, 2022). Its ε is almost exact.
- ``rdp`` adds up Rényi divergences (Mironov 2017; Mironov, Talwar and Zhang 2019). Its ε is larger.

Noise that clients add in parts costs the same (``ccfcpp.privacy.sums.distributed_noise``).
"""

import importlib.util
import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.files import append_line, read_lines, write_atomically

Accountant = Literal["pld", "rdp"]

_MOST_BY_DISTRIBUTIONS = 100.0
"""Largest estimate of ε for which loss distributions are composed; their size grows with it."""
_FINEST, _COARSEST = 2.0**-14, 2.0**-10
"""Smallest and largest distance between the losses of a discrete loss distribution."""
_SHARE_OF_EPSILON = 1e-4
"""Between these limits, the distance is about this share of ε."""


@dataclass(frozen=True)
class Release:
    """Noisy sums over one random sample of clients or images, published together.

    Attributes:
        sampled: Probability with which each client or image is in the sample; 1: all are.
        sums: Number of sums over the sample, each with noise of its own.
    """

    sampled: float
    sums: int


def check_installed() -> None:
    """Raise ``UsageError`` if the library ``dp-accounting`` is missing."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise UsageError(
            KeyValue("privacy.level"),
            " needs dp-accounting, which is not installed: pip install '.[privacy]'",
        )


def epsilon(
    releases: Counter[Release], noise: float, delta: float, accountant: Accountant = "pld"
) -> float:
    """Return ε of the (ε, δ) guarantee for all releases (published noisy sums) together.

    Args:
        releases: How often each release is made.
        noise: Standard deviation of each sum's noise, divided by the largest change that one client
            or image can make.
        delta: δ of the (ε, δ) guarantee.
        accountant: How the releases are added up (see the module).
    """
    return epsilon_of_all({noise: releases}, delta, accountant)


def epsilon_of_all(
    releases: Mapping[float, Counter[Release]], delta: float, accountant: Accountant = "pld"
) -> float:
    """Return ε of all releases together; ``releases`` counts them by noise, as in `epsilon`."""
    counts: Counter[tuple[float, float]] = Counter()
    for noise, own in releases.items():
        for release, times in own.items():
            # n sums over one sample reveal at most as much as one sum with noise / √n.
            counts[noise / math.sqrt(release.sums), release.sampled] += times
    return _epsilon(frozenset(counts.items()), delta, accountant) if counts else 0.0


_Kinds = frozenset[tuple[tuple[float, float], int]]
"""Noise and sampling probability of releases, with the number of such releases."""


@lru_cache(maxsize=1024)
def _epsilon(releases: _Kinds, delta: float, accountant: Accountant) -> float:
    from dp_accounting.dp_event import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    total: RdpAccountant | PLDAccountant
    about = _estimate_epsilon(releases, delta)
    if accountant == "rdp" or about > _MOST_BY_DISTRIBUTIONS:
        # Silences warnings of left-out Rényi orders, which only make ε a little larger.
        logging.getLogger("absl").setLevel(logging.ERROR)
        total = RdpAccountant()
    else:
        interval = 2.0 ** math.floor(math.log2(about * _SHARE_OF_EPSILON))
        total = PLDAccountant(value_discretization_interval=min(max(interval, _FINEST), _COARSEST))
    for (noise, sampled), times in releases:
        event = GaussianDpEvent(noise)
        total.compose(PoissonSampledDpEvent(sampled, event) if sampled < 1 else event, times)
    return float(total.get_epsilon(delta))


def _estimate_epsilon(releases: _Kinds, delta: float) -> float:
    """Estimate ε roughly, by the central limit theorem of Bu, Dong, Long and Su (2020)."""
    square = sum(
        times * (min(1 / noise**2, sampled**2 * math.expm1(min(1 / noise**2, 50.0))))
        for (noise, sampled), times in releases
    )
    return square / 2 + math.sqrt(2 * square * math.log(1 / delta))


def least_noise(
    releases: Counter[Release],
    most_epsilon: float,
    delta: float,
    accountant: Accountant = "pld",
) -> float:
    """Return the smallest noise, as in `epsilon`, with which all releases keep to ``most_epsilon``.

    The result is at most 0.5% larger.

    Raises:
        UsageError: No noise does, up to a million times the change that one client or image makes.
    """
    low, high = 0.0, 1.0
    while epsilon(releases, high, delta, accountant) > most_epsilon:
        low, high = high, 4 * high
        if high > 1e6:
            raise UsageError(
                KeyValue("privacy.epsilon", most_epsilon),
                " allows no run of so many rounds: give more, or fewer rounds",
            )
    while high - low > 5e-3 * high:
        middle = (low + high) / 2
        if epsilon(releases, middle, delta, accountant) > most_epsilon:
            low = middle
        else:
            high = middle
    return high


@dataclass
class Budget:
    """Privacy budget, and how much of it is spent.

    Attributes:
        noise: Standard deviation of each sum's noise, divided by the largest change that one client
            or image can make.
        most: The largest ε that may be spent.
        delta: δ of the (ε, δ) guarantee.
        accountant: How releases are added up.
        releases: How often each release was made so far.
    """

    noise: float
    most: float
    delta: float
    accountant: Accountant = "pld"
    releases: Counter[Release] = field(default_factory=Counter)

    def spend(self, releases: Iterable[Release]) -> None:
        """Add releases to those that are counted; to be called before they are made."""
        self.releases.update(releases)

    @property
    def spent(self) -> float:
        """The ε of all releases so far."""
        return epsilon(self.releases, self.noise, self.delta, self.accountant)

    def allows(self, releases: Iterable[Release]) -> bool:
        """Return whether the budget allows these releases after all those so far."""
        after = self.releases + Counter(releases)
        spent = epsilon(after, self.noise, self.delta, self.accountant)
        return spent <= self.most * (1 + 1e-9)


def read_ledger(path: Path) -> Counter[Release]:
    """Read from the ledger file of a run how often it has made each release so far.

    Each is recorded before it is made. A round that runs again after an interruption publishes
    again, so it is recorded again. A line that a crash has cut short, before anything was
    published, counts like the line before. Raises ``UsageError`` if the file is damaged.
    """
    releases: Counter[Release] = Counter()
    lines, rest = read_lines(path)
    for line in [*lines, *(lines[-1:] if rest else ())]:
        try:
            releases.update(Release(float(q), int(n)) for q, n in json.loads(line)["releases"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path} is damaged, so that the budget is not known: start again with another "
                "--out"
            ) from error
    return releases


def add_to_ledger(path: Path, number: int, releases: list[Release]) -> None:
    """Append the releases of round ``number`` to the ledger file, so that a crash loses none."""
    entry = {"round": number, "releases": [[each.sampled, each.sums] for each in releases]}
    lines, rest = read_lines(path)
    if rest:
        write_atomically(path, "".join(f"{line}\n" for line in lines + lines[-1:]).encode())
    append_line(path, json.dumps(entry), durable=True)
