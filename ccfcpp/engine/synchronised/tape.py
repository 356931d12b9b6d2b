"""A step of one process, forward from pool to pool and back, split into exchanges.

With S₁, …, S_m the pooled sums and t_i(S_i) functions of them, each client has parts
s_i(θ, t₁ … t_{i−1}) of the sums and a part ℓ(θ, t₁ … t_m) of the loss L, beside the common part
ℓ₀(t₁ … t_m). Backward, from the last pool to the first,

    dL/dt_i = ∂ℓ₀/∂t_i + Σ_clients [ ∂ℓ/∂t_i + Σ_{j>i} (∂s_j/∂t_i)ᵀ (∂t_j/∂S_j)ᵀ dL/dt_j ],

which is a sum over clients, too; and with all of these, so is dL/dθ. The graph is cut at each pool,
so that backward goes through each of its parts once.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from ccfcpp.core.errors import FederationError
from ccfcpp.engine.synchronised.contract import Contribution
from ccfcpp.models.pooled import Objective, Pool, Program

Suspension = Generator[None, None, None]


class Tape:
    """A training step in progress, which pauses at each sum that is pooled over the clients."""

    def __init__(self, program: Program, parameters: Mapping[str, Tensor]) -> None:
        self.pools: list[Pool] = []
        self._totals: dict[str, Tensor] = {}
        self._slopes: dict[str, Tensor] = {}
        self._news = Contribution()
        self._run = self._step(program, dict(parameters))

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Run forward and backward passes as far as the sums and gradients received so far allow.

        Args:
            totals: Newly pooled sums, by name.
            slopes: Newly pooled gradients of the loss with respect to sums, by the sum's name.

        Returns:
            All new contributions. The one with the gradient ends the step.
        """
        self._totals |= totals
        self._slopes |= slopes
        self._news = Contribution()
        next(self._run, None)
        return self._news

    def _step(self, program: Program, parameters: dict[str, Tensor]) -> Suspension:
        leaves: list[Tensor] = []
        pooled: list[Tensor] = []
        sums: list[Tensor] = []
        try:
            pool = next(program)
            while True:
                leaf = pool.of.detach().requires_grad_()
                own = pool.sums(leaf)
                self.pools.append(pool)
                self._news.sums[pool.name] = own.detach()
                while pool.name not in self._totals:
                    yield
                total = self._totals[pool.name].detach()
                statistics = pool.statistics(total).detach().requires_grad_()
                leaves.append(leaf)
                pooled.append(statistics)
                sums.append(own)
                pool = program.send((leaf, statistics))
        except StopIteration as end:
            objective: Objective = end.value
        gradients = _Gradients([*parameters.values(), *leaves, *pooled])
        gradients.add(objective.local, torch.ones_like(objective.local))
        common = gradients_at_statistics(objective.common, pooled)
        steps = list(zip(self.pools, leaves, pooled, sums, common, strict=True))
        for pool, leaf, statistics, own, slope in reversed(steps):
            if not pool.common:
                self._news.slopes[pool.name] = gradients.of(statistics)
                while pool.name not in self._slopes:
                    yield
                slope = slope + self._slopes[pool.name]
            gradients.add(own, gradient_at_sum(pool, self._totals[pool.name], slope))
            gradients.add(pool.of, gradients.of(leaf))
        for name, parameter in parameters.items():
            self._news.gradient[name] = gradients.of(parameter)
        for name, figure in (objective.figures or {}).items():
            self._news.figures[name] = figure.detach().double()


class _Gradients:
    """Gradients at leaves, accumulated from part to part of the graph."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._leaves = list(leaves)
        self._found: list[Tensor | None] = [None] * len(self._leaves)
        self._places = {id(leaf): place for place, leaf in enumerate(self._leaves)}

    def add(self, output: Tensor, slope: Tensor) -> None:
        """Add the gradients at leaves that follow from the gradient at an output."""
        if not output.requires_grad:
            return
        # A shortcut may lead through a part of the graph for a second time.
        new = torch.autograd.grad(
            output, self._leaves, slope.to(output.dtype), retain_graph=True, allow_unused=True
        )
        for place, part in enumerate(new):
            if part is not None:
                before = self._found[place]
                self._found[place] = part if before is None else before + part

    def of(self, leaf: Tensor) -> Tensor:
        """Return the accumulated gradient at a leaf."""
        found = self._found[self._places[id(leaf)]]
        return torch.zeros_like(leaf) if found is None else found


def gradient_at_sum(pool: Pool, total: Tensor, slope: Tensor) -> Tensor:
    """Return the gradient at a pooled sum, from that at its statistics."""
    total = total.detach().requires_grad_()
    at_sum: Tensor = torch.autograd.grad(pool.statistics(total), total, slope)[0]
    return at_sum


def gradients_at_statistics(common: Tensor | None, pooled: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradient of the common part at the statistics of each pool."""
    leaves = list(pooled)
    if common is None or not common.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(common, leaves, allow_unused=True, materialize_grads=True))


@dataclass(frozen=True)
class Lags:
    """Sums and gradients that a step takes from the step before, to save exchanges.

    The gradient is then no longer the exact one; as steps become small, so does the difference.

    Attributes:
        totals: Pools whose sum is that of the step before.
        slopes: Pools at whose sum the gradient is that of the step before.
    """

    totals: frozenset[str] = frozenset()
    slopes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    """The exchanges of a step.

    Attributes:
        trips: For each exchange the contribution of a client without samples: zeros.
        lags: Sums and gradients of the step before.
        valid: Functions that tell whether a client's part of a sum is possible, by the sum's name.
        nearest: Functions that map a noisy sum to the nearest possible one, likewise.
    """

    trips: tuple[Contribution, ...]
    lags: Lags = field(default_factory=Lags)
    valid: Mapping[str, Callable[[Tensor], bool]] = field(default_factory=dict)
    nearest: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def new_values(
        self, trip: int, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the sums and gradients that clients do not know yet before an exchange.

        Raises:
            FederationError: The step lags, and no step before it was completed.
        """
        if trip == 0:
            if not (self.lags.totals <= totals.keys() and self.lags.slopes <= slopes.keys()):
                raise FederationError(
                    "no client completed a first step, of which later ones need the sums: begin "
                    "again, or leave out --set scan.lagged=true"
                )
            asked = set(self.lags.totals), set(self.lags.slopes)
        else:
            before = self.trips[trip - 1]
            asked = before.sums.keys() - self.lags.totals, before.slopes.keys() - self.lags.slopes
        return {name: totals[name] for name in asked[0]}, {name: slopes[name] for name in asked[1]}


def rehearse_plans(make: Callable[[], Tape], lags: Lags) -> tuple[Plan, Plan]:
    """Return the exchanges of exact and of lagged steps, by a trial on a few samples."""
    nothing: Contribution = Contribution()
    first, seen = _rehearsed(make(), Lags(), nothing)
    return first, _rehearsed(make(), lags, seen)[0]


def run_all_exchanges(
    tape: Tape,
    totals: Mapping[str, Tensor] = MappingProxyType({}),
    slopes: Mapping[str, Tensor] = MappingProxyType({}),
) -> list[Contribution]:
    """Run all exchanges of a step whose sums are all known here.

    Args:
        tape: The step, which has not begun.
        totals: Pooled sums that are known before, by name.
        slopes: Pooled gradients that are known before, likewise.

    Returns:
        The contribution of each exchange; the last one has the gradient.
    """
    trips = [tape.advance(totals, slopes)]
    while not trips[-1].gradient:
        trips.append(tape.advance(trips[-1].sums, trips[-1].slopes))
    return trips


def _rehearsed(tape: Tape, lags: Lags, before: Contribution) -> tuple[Plan, Contribution]:
    """Return the plan, and all sums and gradients of the step."""
    totals = {name: before.sums[name] for name in lags.totals}
    slopes = {name: before.slopes[name] for name in lags.slopes}
    trips = run_all_exchanges(tape, totals, slopes)
    seen = Contribution()
    for trip in trips:
        seen.sums.update(trip.sums)
        seen.slopes.update(trip.slopes)
    valid = {pool.name: pool.valid for pool in tape.pools}
    nearest = {pool.name: pool.nearest for pool in tape.pools}
    nothing = (
        Contribution(
            *(
                {n: torch.zeros_like(part) for n, part in parts.items()}
                for parts in vars(t).values()
            )
        )
        for t in trips
    )
    return Plan(tuple(nothing), lags, valid, nearest), seen
