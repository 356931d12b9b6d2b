"""The server's half of a synchronised step: it adds up, and moves the model."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Figures, RefusedUpdateError, ServerWork
from ccfcpp.engine.parts import Form, form_of
from ccfcpp.engine.payload import added_up, pack
from ccfcpp.engine.synchronised.contract import Contribution, D, DescentState, Known, narrowed
from ccfcpp.engine.synchronised.optimizers import Optimizer
from ccfcpp.engine.synchronised.tape import Plan
from ccfcpp.models.pooled import running_statistics
from ccfcpp.models.state import ModelState


@dataclass(eq=False)
class Trip(ServerWork[D, Known, Contribution]):
    """The server's work in one trip of a step.

    Attributes:
        begin: Makes the state of a descent before its first step, from a model.
        share: From the number of a step to the share of the learning rate.
        ends: Whether the descent is over with it: what follows is another one's.
    """

    exchange: Exchange[Known, Contribution]
    plan: Plan
    number: int
    begin: Callable[[ModelState], DescentState]
    optimizer: Optimizer
    share: Callable[[int], float]
    precision: torch.dtype | None = None
    ends: bool = False

    def broadcast(self, state: D) -> Known:
        """What clients do not know yet."""
        descent = self._descent(state)
        return Known(
            state.version,
            state.model if self.number == 0 else {},
            *self.plan.news(self.number, descent.totals, descent.slopes),
        )

    def form(self, message: Known) -> Form:
        """What the trip asks for, with a gradient as it travels."""
        wanted = self.plan.trips[self.number]
        travels = narrowed(wanted.gradient, self.precision)
        return form_of(pack(dataclasses.replace(wanted, gradient=travels)))

    def check(self, message: Known, update: Contribution, senders: Sequence[Member]) -> None:
        """Refuse sums that no batch can have."""
        for name, part in update.sums.items():
            if not self.plan.valid[name](part):
                raise RefusedUpdateError(f"the sums of {name} are those of no batch")

    def mended(self, message: Known, update: Contribution) -> Contribution:
        """Each sum with noise becomes the nearest one that a batch can have."""
        sums = {name: self.plan.nearest[name](part) for name, part in update.sums.items()}
        return dataclasses.replace(update, sums=sums)

    def aggregate(
        self, state: D, updates: Iterable[Contribution], randomness: Randomness
    ) -> tuple[D, Figures]:
        """Add up; in the last trip, move."""
        total = added_up(map(widened, updates))
        before = self._descent(state)
        descent = dataclasses.replace(
            before, totals=before.totals | total.sums, slopes=before.slopes | total.slopes
        )
        if not total.gradient:
            return _with(state, descent=descent), {}
        return self._moved(state, descent, total)

    def _descent(self, state: D) -> DescentState:
        """The descent so far; a new one where a state has none."""
        return state.descent or self.begin(state.model)

    def _moved(self, state: D, descent: DescentState, total: Contribution) -> tuple[D, Figures]:
        parameters = {n: entry for n, entry in state.model.items() if n in total.gradient}
        gradient = {n: total.gradient[n].to(entry.dtype) for n, entry in parameters.items()}
        share = self.share(descent.steps)
        moved, after = self.optimizer.step(parameters, gradient, descent, share)
        model = state.model | moved | _statistics(state.model, descent.totals)
        after = dataclasses.replace(after, steps=descent.steps + 1, figures=total.figures)
        figures = {name: float(figure) for name, figure in total.figures.items()}
        kept = None if self.ends else after
        return _with(state, model=model, version=state.version + 1, descent=kept), figures


def _statistics(model: ModelState, totals: dict[str, Tensor]) -> ModelState:
    """Running statistics of those pools that are batch normalisations of the model."""
    found: ModelState = {}
    for name, sums in totals.items():
        if f"{name}.running_mean" in model:
            found |= running_statistics(model, name, sums)
    return found


def widened(contribution: Contribution) -> Contribution:
    """The gradient in at least 32 bits, in which it can be added up."""
    wide = {n: g.float() if g.itemsize < 4 else g for n, g in contribution.gradient.items()}
    return dataclasses.replace(contribution, gradient=wide)


def _with(state: D, **changes: object) -> D:
    return cast(D, dataclasses.replace(cast(Any, state), **changes))
