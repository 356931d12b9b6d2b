"""A training step of one process, whose forward and backward pass is split into exchanges.

Let θ be the weights, S₁, …, S_m the sums that are pooled over clients, and t_i(S_i) the statistics
that the step computes of them. A client's part of S_i is s_i(θ, t₁ … t_{i−1}), and its part of the
loss L is ℓ(θ, t₁ … t_m); ℓ₀(t₁ … t_m) is the common part of L. Backward, from the last pooled sum
to the first,

    dL/dt_i = ∂ℓ₀/∂t_i + Σ_clients [ ∂ℓ/∂t_i + Σ_{j>i} (∂s_j/∂t_i)ᵀ (∂t_j/∂S_j)ᵀ dL/dt_j ],

which is again a sum over clients, as is dL/dθ (docs/synchronised.md). The graph is cut at each
pooled sum, so that backward goes through each segment once.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from ccfcpp.core.errors import FederationError
from ccfcpp.engine.payload import pack, unpack
from ccfcpp.engine.synchronised.contract import Contribution
from ccfcpp.models.pooled import Objective, Pool, Program

Suspension = Generator[None, None, None]


class Tape:
    """A training step in progress, which pauses at each sum that is pooled over the clients.

    Attributes:
        pools: The pools (requests for sums) that the step's program has yielded so far.
    """

    def __init__(self, program: Program, parameters: Mapping[str, Tensor]) -> None:
        self.pools: list[Pool] = []
        self._totals: dict[str, Tensor] = {}
        self._slopes: dict[str, Tensor] = {}
        self._new = Contribution()
        self._run = self._step(program, dict(parameters))

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Run forward and backward passes as far as the sums and gradients received so far allow.

        Args:
            totals: Newly pooled sums, by name.
            slopes: Newly pooled gradients of the loss with respect to sums, by the sum's name.

        Returns:
            All sums and gradients that are new. The step's last contribution has ``gradient``.
        """
        self._totals |= totals
        self._slopes |= slopes
        self._new = Contribution()
        next(self._run, None)
        return self._new

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
                self._new.sums[pool.name] = own.detach()
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
        for pool, leaf, statistics, own, gradient in reversed(steps):
            if not pool.common:
                self._new.slopes[pool.name] = gradients.of(statistics)
                while pool.name not in self._slopes:
                    yield
                gradient = gradient + self._slopes[pool.name]
            gradients.add(own, gradient_at_sum(pool, self._totals[pool.name], gradient))
            gradients.add(pool.of, gradients.of(leaf))
        for name, parameter in parameters.items():
            self._new.gradient[name] = gradients.of(parameter)
        for name, figure in (objective.figures or {}).items():
            self._new.figures[name] = figure.detach().double()


class _Gradients:
    """Gradients of the loss at leaves, accumulated over the segments of a cut autograd graph."""

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        self._leaves = list(leaves)
        self._sums: list[Tensor | None] = [None] * len(self._leaves)
        self._places = {id(leaf): place for place, leaf in enumerate(self._leaves)}

    def add(self, output: Tensor, gradient: Tensor) -> None:
        """Propagate the gradient at an output back to the leaves, and add it there."""
        if not output.requires_grad:
            return
        # The graph stays, since a shortcut may use a segment a second time.
        new = torch.autograd.grad(
            output, self._leaves, gradient.to(output.dtype), retain_graph=True, allow_unused=True
        )
        for place, part in enumerate(new):
            if part is not None:
                before = self._sums[place]
                self._sums[place] = part if before is None else before + part

    def of(self, leaf: Tensor) -> Tensor:
        """Return the accumulated gradient at a leaf."""
        gradient = self._sums[self._places[id(leaf)]]
        return torch.zeros_like(leaf) if gradient is None else gradient


def gradient_at_sum(pool: Pool, total: Tensor, gradient: Tensor) -> Tensor:
    """Return the loss's gradient with respect to a pooled sum, from that for its statistics."""
    total = total.detach().requires_grad_()
    at_sum: Tensor = torch.autograd.grad(pool.statistics(total), total, gradient)[0]
    return at_sum


def gradients_at_statistics(common: Tensor | None, pooled: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradient of the loss's common part with respect to each of the statistics."""
    leaves = list(pooled)
    if common is None or not common.requires_grad:
        return [torch.zeros_like(leaf) for leaf in leaves]
    return list(torch.autograd.grad(common, leaves, allow_unused=True, materialize_grads=True))


@dataclass(frozen=True)
class Lags:
    """Sums and gradients that a lagged step takes from the step before, to save exchanges.

    The gradient is then not exact; the smaller the steps, the smaller the error.

    Attributes:
        totals: Names of the pooled sums that are taken from the step before.
        slopes: Names of the pooled sums whose gradient is taken from the step before.
    """

    totals: frozenset[str] = frozenset()
    slopes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Plan:
    """The exchanges between server and clients that make up one synchronised training step.

    Attributes:
        trips: A template for each exchange: the names and shapes of its sums and gradients, with
            zeros, as a client without samples sends.
        lags: Sums and gradients that are taken from the step before.
        valid: Functions that return whether a client's summand is possible, by the sum's name.
        nearest: Functions that map a noisy sum to the nearest possible one, by the sum's name.
    """

    trips: tuple[Contribution, ...]
    lags: Lags = field(default_factory=Lags)
    valid: Mapping[str, Callable[[Tensor], bool]] = field(default_factory=dict)
    nearest: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def new_values(
        self, number: int, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Select the sums and gradients that clients lack before exchange ``number``, from 0.

        Raises:
            FederationError: The step lags, and no step before it was completed.
        """
        if number == 0:
            if not (self.lags.totals <= totals.keys() and self.lags.slopes <= slopes.keys()):
                raise FederationError(
                    "no client completed a first step, of which later ones need the sums: begin "
                    "again, or leave out --set scan.lagged=true"
                )
            asked = set(self.lags.totals), set(self.lags.slopes)
        else:
            before = self.trips[number - 1]
            asked = before.sums.keys() - self.lags.totals, before.slopes.keys() - self.lags.slopes
        return {name: totals[name] for name in asked[0]}, {name: slopes[name] for name in asked[1]}


def rehearse_plans(make: Callable[[], Tape], lags: Lags) -> tuple[Plan, Plan]:
    """Return the plans of exact and of lagged steps, from two trial steps that ``make`` begins."""
    exact, seen = _rehearse(make(), Lags(), Contribution())
    return exact, _rehearse(make(), lags, seen)[0]


def run_all_exchanges(
    tape: Tape,
    totals: Mapping[str, Tensor] = MappingProxyType({}),
    slopes: Mapping[str, Tensor] = MappingProxyType({}),
) -> list[Contribution]:
    """Run all exchanges of a step without a server, with this process's sums as totals.

    Args:
        tape: The step, which has not begun.
        totals: Pooled sums of the step before, by name.
        slopes: Pooled gradients of the step before, by name.

    Returns:
        The contribution of each exchange; the last one has the gradient.
    """
    updates = [tape.advance(totals, slopes)]
    while not updates[-1].gradient:
        updates.append(tape.advance(updates[-1].sums, updates[-1].slopes))
    return updates


def _rehearse(tape: Tape, lags: Lags, before: Contribution) -> tuple[Plan, Contribution]:
    """Run a trial step, with lagged sums from ``before``; return its plan, sums and gradients."""
    totals = {name: before.sums[name] for name in lags.totals}
    slopes = {name: before.slopes[name] for name in lags.slopes}
    updates = run_all_exchanges(tape, totals, slopes)
    seen = Contribution()
    for update in updates:
        seen.sums.update(update.sums)
        seen.slopes.update(update.slopes)
    valid = {pool.name: pool.valid for pool in tape.pools}
    nearest = {pool.name: pool.nearest for pool in tape.pools}
    zeros = ({n: torch.zeros_like(part) for n, part in pack(update).items()} for update in updates)
    trips = tuple(unpack(Contribution, each) for each in zeros)
    return Plan(trips, lags, valid, nearest), seen
