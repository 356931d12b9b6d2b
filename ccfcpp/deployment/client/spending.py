"""What a client's images have cost in privacy, by the client's own reckoning.

A server says which ε a run has. The client does not rely on that: it counts what it was asked for,
and with which noise. Where clients add the noise, what it counts does not depend on the server at
all, as far as the secure sum holds; else the server has to add what it says. On the client level
every sum counts in full, since whoever sees the client take part knows that it was sampled; on the
image level the client samples its images itself.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.client.rules import ForbiddenError
from ccfcpp.engine.exchange import AnyExchange, Images
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.accountant import Release, epsilon_of_all

FILE = "privacy.jsonl"
_MOST_NOISE = 1e6
"""Beyond it, and below its inverse, ε is no number that can be computed."""


@dataclass(frozen=True)
class Part:
    """The client's part of a sum.

    Attributes:
        run: Token of the run.
        noise: Standard deviation of the sum's noise, by what one client or image can change it.
        sampled: With which probability an image is in it; 1 on the client level.
        follows: Whether it is over the same sample as the part before.
    """

    run: str
    noise: float
    sampled: float
    follows: bool

    @staticmethod
    def of(run: str, privacy: PrivacyConfig, exchange: AnyExchange) -> "Part":
        """Return the part of an exchange.

        Raises:
            ForbiddenError: The run does not say how much noise there is, or it cannot be counted.
        """
        if privacy.noise is None:
            raise ForbiddenError("the run does not say how much noise its sums get")
        if not 1 / _MOST_NOISE <= privacy.noise <= _MOST_NOISE:
            raise ForbiddenError(
                f"privacy.noise = {privacy.noise:g} cannot be counted: it should be from "
                f"{1 / _MOST_NOISE:g} to {_MOST_NOISE:g}"
            )
        images = exchange.images
        if privacy.level == "client" or not isinstance(images, Images):
            return Part(run, privacy.noise, 1.0, follows=False)
        return Part(run, privacy.noise, images.share, exchange.follows)


class Spending:
    """All parts of sums that a client has sent.

    Args:
        folder: Folder of the client's state.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._parts = self._read()

    def allow(self, part: Part, delta: float, in_run: float | None, in_all: float | None) -> None:
        """Write a part down before it is sent.

        Args:
            part: The client's part of a sum.
            delta: δ.
            in_run: The largest ε of a run; None: any.
            in_all: The largest ε of all runs together; None: any.

        Raises:
            ForbiddenError: It would cost more. Then it is not written down.
        """
        after = [*self._parts, part]
        own = [each for each in after if each.run == part.run]
        for parts, most, what in ((own, in_run, "this run"), (after, in_all, "all runs together")):
            if most is not None and (spent := epsilon(parts, delta)) > most * (1 + 1e-9):
                raise ForbiddenError(
                    f"with this sum {what} would cost its images ε = {spent:.3g}, and its owner "
                    f"allows {most:g}"
                )
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(vars(part)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._parts = after

    def epsilon(self, delta: float, run: str | None = None) -> float:
        """Return ε of one run, or of all together."""
        return epsilon([part for part in self._parts if run in (None, part.run)], delta)

    def _read(self) -> list[Part]:
        try:
            lines = self._path.read_text().splitlines() if self._path.exists() else []
            return [Part(**json.loads(line)) for line in lines]
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{self._path} is damaged, so that what was spent is not known: give another "
                "--state only if its loss may be forgotten"
            ) from error


def epsilon(parts: list[Part], delta: float) -> float:
    """Return ε of parts of sums, in the order in which they were sent."""
    found: dict[float, list[Release]] = {}
    for part in parts:
        releases = found.setdefault(part.noise, [])
        if part.follows and releases and releases[-1].sampled == part.sampled:
            releases[-1] = Release(part.sampled, releases[-1].sums + 1)
        else:
            releases.append(Release(part.sampled, 1))
    return epsilon_of_all({noise: Counter(each) for noise, each in found.items()}, delta)
