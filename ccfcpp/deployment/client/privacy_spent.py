"""Privacy loss (ε, δ) of a client's images, computed by the client itself.

The server states the ε of a run, but the client does not rely on it: it records each sum to which
it contributes, with the sum's noise. If the clients add the noise in a secure sum, this record does
not depend on the server; else the server must add the noise that it states. With
``privacy.level = client`` a sum counts with sampling probability 1, since an observer sees which
clients take part; with ``image`` the client samples its images itself.
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
"""Largest noise, and inverse of the smallest noise, for which ε can be computed."""


@dataclass(frozen=True)
class SumCost:
    """Privacy cost of one noisy sum to which the client contributes.

    Attributes:
        run: Token (random identifier) of the run.
        noise: Standard deviation of the sum's noise, divided by its sensitivity: the most that one
            client or image can change the sum.
        sampled: Probability that an image is in the sum; 1 if privacy protects whole clients.
        follows: Whether the sum is over the same sample as the previous sum of the same ``steps``.
        steps: Name of the process that draws the samples, such as the training of one network.
    """

    run: str
    noise: float
    sampled: float
    follows: bool
    steps: str = ""

    def extends(self, before: "SumCost | None") -> bool:
        """Return whether this sum is over the same sample as ``before``, the previous sum sent."""
        return before is not None and replace(before, follows=True) == self

    @staticmethod
    def of(run: str, privacy: PrivacyConfig, exchange: AnyExchange) -> "SumCost":
        """Return the privacy cost of a client's update in an exchange; ``run``: the run's token.

        Raises:
            ForbiddenError: The run does not state its noise, or ε cannot be computed for it.
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
            return SumCost(run, privacy.noise, 1.0, follows=False)
        steps = exchange.name.partition(EXCHANGE_NUMBER)[0]
        return SumCost(run, privacy.noise, images.share, exchange.follows, steps)


class Spending:
    """Record of all noisy sums to which a client has contributed, in a file.

    Args:
        folder: Folder of the client's state.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._parts = self._read()

    def record(
        self, part: SumCost, delta: float, in_run: float | None, in_all: float | None
    ) -> None:
        """Record a contribution to a sum before it is sent.

        Args:
            part: Privacy cost of the sum.
            delta: δ for which ε is computed.
            in_run: Largest ε allowed in one run; None: any.
            in_all: Largest ε allowed in all runs together; None: any.

        Raises:
            ForbiddenError: ε would exceed a limit. Then nothing is recorded.
        """
        after = [*self._parts, part]
        own = [each for each in after if each.run == part.run]
        for parts, most, what in ((own, in_run, "this run"), (after, in_all, "all runs together")):
            if most is not None and (spent := epsilon_spent(parts, delta)) > most * (1 + 1e-9):
                raise ForbiddenError(
                    f"with this sum {what} would cost its images ε = {spent:.3g}, and its owner "
                    f"allows {most:g}"
                )
        if read_lines(self._path)[1]:  # The last line is incomplete.
            whole = [json.dumps(vars(each)) for each in self._parts]
            write_atomically(self._path, "\n".join([*whole, ""]).encode())
        append_line(self._path, json.dumps(vars(part)), durable=True)
        self._parts = after

    def epsilon(self, delta: float, run: str | None = None) -> float:
        """Return the ε (at δ = ``delta``) spent in the run with token ``run``; None: all runs."""
        return epsilon_spent([part for part in self._parts if run in (None, part.run)], delta)

    def _read(self) -> list[SumCost]:
        lines, rest = read_lines(self._path)
        parts: list[SumCost] = []
        for number, line in enumerate(lines, 1):
            try:
                parts.append(SumCost(**json.loads(line)))
            except (ValueError, TypeError) as error:
                raise UsageError(
                    f"line {number} of {self._path} is damaged, so that what was spent is not "
                    "known: put back a copy of the file; another --state would forget the budget"
                ) from error
        try:
            return [*parts, SumCost(**json.loads(rest))] if rest else parts
        except (ValueError, TypeError):
            # Nothing was sent for an incomplete line. To be safe it counts, with sampling
            # probability 1 and the smallest noise so far.
            least = min((part.noise for part in parts), default=_MOST_NOISE)
            return [*parts, SumCost(parts[-1].run if parts else "", least, 1.0, follows=False)]


def epsilon_spent(parts: list[SumCost], delta: float) -> float:
    """Return the total ε (at δ = ``delta``) of a client's sums, in the order of their sending."""
    by_noise: dict[float, list[Release]] = {}
    for before, part in zip([None, *parts], parts, strict=False):
        releases = by_noise.setdefault(part.noise, [])
        if part.extends(before):
            releases[-1] = Release(releases[-1].sampled, releases[-1].sums + 1)
        else:
            # A sum over an earlier sample, after other sums: the sampling gives no further privacy,
            # since earlier sums over this sample have been counted with it.
            releases.append(Release(1.0 if part.follows else part.sampled, 1))
    return epsilon_of_all({noise: Counter(each) for noise, each in by_noise.items()}, delta)
