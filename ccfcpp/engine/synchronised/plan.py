"""Which trips a step takes, and what travels in each: worked out by going through one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ccfcpp.engine.synchronised.messages import Contribution, nothing_of
from ccfcpp.engine.synchronised.tape import Tape


@dataclass(frozen=True)
class Lags:
    """What a step takes from the step before, so that it needs fewer trips.

    The gradient is then no longer the exact one; as steps become small, so does the difference.

    Attributes:
        totals: Pools whose sum is that of the step before.
        slopes: Pools at whose sum the gradient is that of the step before.
    """

    totals: frozenset[str] = frozenset()
    slopes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    """The trips of a step.

    Attributes:
        trips: For each trip what a client without a sample contributes: zeros.
        lags: What is known from the step before.
        valid: Whether a client's part of a sum could be what it claims to be, by the sum's name.
        nearest: From a sum with noise to the nearest one that could be, likewise.
    """

    trips: tuple[Contribution, ...]
    lags: Lags = field(default_factory=Lags)
    valid: Mapping[str, Callable[[Tensor], bool]] = field(default_factory=dict)
    nearest: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def new_totals(self, trip: int, totals: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of the sums so far, those that clients do not know before a trip."""
        if trip == 0:
            return {name: totals[name] for name in self.lags.totals}
        asked = self.trips[trip - 1].sums.keys() - self.lags.totals
        return {name: totals[name] for name in asked}

    def new_slopes(self, trip: int, slopes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of the gradients so far, those that clients do not know before a trip."""
        if trip == 0:
            return {name: slopes[name] for name in self.lags.slopes}
        asked = self.trips[trip - 1].slopes.keys() - self.lags.slopes
        return {name: slopes[name] for name in asked}


def rehearsed(make: Callable[[], Tape], lags: Lags) -> tuple[Plan, Plan]:
    """Go through a step with a few samples of one client.

    Args:
        make: Makes the tape of such a step.
        lags: What a step takes from the step before.

    Returns:
        The plan of the first step, which has no step before it, and that of all others.
    """
    nothing: Contribution = Contribution()
    first, seen = _rehearsed(make(), Lags(), nothing)
    return first, _rehearsed(make(), lags, seen)[0]


def _rehearsed(tape: Tape, lags: Lags, before: Contribution) -> tuple[Plan, Contribution]:
    """The plan, and all sums and gradients of the step."""
    totals = {name: before.sums[name] for name in lags.totals}
    slopes = {name: before.slopes[name] for name in lags.slopes}
    trips: list[Contribution] = []
    seen = Contribution()
    while not trips or not trips[-1].gradient:
        trips.append(tape.advance(totals, slopes))
        totals, slopes = trips[-1].sums, trips[-1].slopes
        seen.sums.update(totals)
        seen.slopes.update(slopes)
    valid = {pool.name: pool.valid for pool in tape.pools}
    nearest = {pool.name: pool.nearest for pool in tape.pools}
    return Plan(tuple(map(nothing_of, trips)), lags, valid, nearest), seen
