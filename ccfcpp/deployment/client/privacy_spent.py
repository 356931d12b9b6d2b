"""The privacy loss of a client's images, counted by the client itself.

A server states the ε of a run. The client does not rely on that: it counts the sums it was asked
for, and their noise. If clients add the noise, this count does not depend on the server at
all, as long as the secure sum holds; else the server has to add the noise that it states. On the
client level every sum counts in full, since anyone who sees the client take part knows that it was
sampled; on the image level the client samples its images itself.
"""

import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import append_line, read_lines, write_atomically
from ccfcpp.deployment.client.rules import ForbiddenError
from ccfcpp.engine.exchange import AnyExchange, Images
from ccfcpp.engine.synchronised.descent import EXCHANGE_NUMBER
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.accountant import Release, epsilon_of_all

FILE = "privacy.jsonl"
_MOST_NOISE = 1e6
"""Beyond it, and below its inverse, ε is no number that can be computed."""


@dataclass(frozen=True)
class Part:
    """Privacy cost of one noisy sum to which the client contributes.

    Attributes:
        run: Token of the run.
        noise: Standard deviation of the sum's noise, by what one client or image can change it.
        sampled: Probability that an image is in it; 1 on the client level.
        follows: Whether it is over the same sample as the part before of the same ``steps``.
        steps: Name of what draws the samples, such as the steps of one network.
    """

    run: str
    noise: float
    sampled: float
    follows: bool
    steps: str = ""

    def extends(self, before: "Part | None") -> bool:
        """Return whether it is over the same sample as the part that was sent directly before."""
        return before is not None and replace(before, follows=True) == self

    @staticmethod
    def of(run: str, privacy: PrivacyConfig, exchange: AnyExchange) -> "Part":
        """Return the part of an exchange.

        Raises:
            ForbiddenError: The run does not state its noise, or the part cannot be counted.
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
        steps = exchange.name.partition(EXCHANGE_NUMBER)[0]
        return Part(run, privacy.noise, images.share, exchange.follows, steps)


class Spending:
    """All parts of sums that a client has sent.

    Args:
        folder: Folder of the client's state.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._parts = self._read()

    def allow(self, part: Part, delta: float, in_run: float | None, in_all: float | None) -> None:
        """Record a part before it is sent.

        Args:
            part: The client's part of a sum.
            delta: δ.
            in_run: The largest ε of a run; None: any.
            in_all: The largest ε of all runs together; None: any.

        Raises:
            ForbiddenError: The ε would exceed a limit. Then the part is not recorded.
        """
        after = [*self._parts, part]
        own = [each for each in after if each.run == part.run]
        for parts, most, what in ((own, in_run, "this run"), (after, in_all, "all runs together")):
            if most is not None and (spent := epsilon_spent(parts, delta)) > most * (1 + 1e-9):
                raise ForbiddenError(
                    f"with this sum {what} would cost its images ε = {spent:.3g}, and its owner "
                    f"allows {most:g}"
                )
        if read_lines(self._path)[1]:  # It was cut short.
            whole = [json.dumps(vars(each)) for each in self._parts]
            write_atomically(self._path, "\n".join([*whole, ""]).encode())
        append_line(self._path, json.dumps(vars(part)), durable=True)
        self._parts = after

    def epsilon(self, delta: float, run: str | None = None) -> float:
        """Return ε of one run, or of all together."""
        return epsilon_spent([part for part in self._parts if run in (None, part.run)], delta)

    def _read(self) -> list[Part]:
        lines, rest = read_lines(self._path)
        parts: list[Part] = []
        for number, line in enumerate(lines, 1):
            try:
                parts.append(Part(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise UsageError(
                    f"line {number} of {self._path} is damaged, so that what was spent is not "
                    "known: put back a copy of the file; another --state would forget the budget"
                ) from error
        try:
            return [*parts, Part(**json.loads(rest))] if rest else parts
        except (ValueError, TypeError):
            # Nothing was sent for a line that was cut short. All the same it counts in full, with
            # the least noise so far.
            least = min((part.noise for part in parts), default=_MOST_NOISE)
            return [*parts, Part(parts[-1].run if parts else "", least, 1.0, follows=False)]


def epsilon_spent(parts: list[Part], delta: float) -> float:
    """Return the ε of parts of sums, in the order in which they were sent."""
    found: dict[float, list[Release]] = {}
    for before, part in zip([None, *parts], parts, strict=False):
        releases = found.setdefault(part.noise, [])
        if part.extends(before):
            releases[-1] = Release(releases[-1].sampled, releases[-1].sums + 1)
        else:
            # What goes on with another sample than the last one is over images that are known to be
            # drawn, or not: that they might not have been hides nothing any more.
            releases.append(Release(1.0 if part.follows else part.sampled, 1))
    return epsilon_of_all({noise: Counter(each) for noise, each in found.items()}, delta)
