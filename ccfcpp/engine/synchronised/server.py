"""The server's half of a synchronised step: it adds up, and moves the model."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Figures, RefusedUpdateError, ServerWork
from ccfcpp.engine.payload import added_up, check_same_shapes, pack
from ccfcpp.engine.synchronised.messages import Contribution, D, Descent, Known
from ccfcpp.engine.synchronised.optimizers import Optimizer
from ccfcpp.engine.synchronised.plan import Plan
from ccfcpp.models.pooled import running_statistics
from ccfcpp.models.state import ModelState


@dataclasses.dataclass(frozen=True)
class Steps:
    """How the steps of a descent are made.

    Attributes:
        exchanges: What a step's trips are called, one for each trip of the longest step.
        optimizer: Its state is the server's.
        parameters: Names of what moves; the rest of the model are running statistics.
        share: From the number of a step to the share of the learning rate.
        precision: The dtype in which gradients travel; None for their own.
    """

    exchanges: Sequence[Exchange[Known, Contribution]]
    optimizer: Optimizer
    parameters: Sequence[str]
    share: Callable[[int], float]
    precision: torch.dtype | None = None

    def begin(self, model: ModelState) -> Descent:
        """A descent before its first step."""
        return self.optimizer.begin({name: model[name] for name in self.parameters})

    def step(self, plan: Plan) -> list["Trip[Any]"]:
        """The trips of one step, in order."""
        return [Trip(self, plan, number) for number in range(len(plan.trips))]


class Trip(ServerWork[D, Known, Contribution]):
    """One trip of a step.

    Args:
        steps: How steps are made.
        plan: The trips of this step.
        number: Which of them it is.
    """

    def __init__(self, steps: Steps, plan: Plan, number: int) -> None:
        self.steps = steps
        self.plan = plan
        self.number = number
        self.exchange = steps.exchanges[number]

    def broadcast(self, state: D) -> Known:
        """What clients do not know yet."""
        descent = self._descent(state)
        return Known(
            state.version,
            state.model if self.number == 0 else {},
            self.plan.new_totals(self.number, descent.totals),
            self.plan.new_slopes(self.number, descent.slopes),
        )

    def expected(self, message: Known) -> Contribution:
        """What the trip asks for, with a gradient as it travels."""
        wanted = self.plan.trips[self.number]
        return dataclasses.replace(wanted, gradient=narrowed(wanted.gradient, self.steps.precision))

    def check(self, message: Known, update: Contribution, senders: Sequence[Member]) -> None:
        """Refuse what has wrong shapes, and sums that no batch can have."""
        check_same_shapes(pack(self.expected(message)), pack(update), "part of")
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

    def _descent(self, state: D) -> Descent:
        """The descent so far; a new one where a state has none."""
        return state.descent or self.steps.begin(state.model)

    def _moved(self, state: D, descent: Descent, total: Contribution) -> tuple[D, Figures]:
        rules = self.steps
        parameters = {name: state.model[name] for name in rules.parameters}
        gradient = {n: g.to(parameters[n].dtype) for n, g in total.gradient.items()}
        share = rules.share(descent.steps)
        moved, after = rules.optimizer.step(parameters, gradient, descent, share)
        model = state.model | moved | _statistics(state.model, descent.totals)
        after = dataclasses.replace(after, steps=descent.steps + 1, figures=total.figures)
        figures = {name: float(figure) for name, figure in total.figures.items()}
        return _with(state, model=model, version=state.version + 1, descent=after), figures


def _statistics(model: ModelState, totals: dict[str, Tensor]) -> ModelState:
    """Running statistics of those pools that are batch normalisations of the model."""
    found: ModelState = {}
    for name, sums in totals.items():
        if f"{name}.running_mean" in model:
            found |= running_statistics(model, name, sums)
    return found


def narrowed(gradient: ModelState, precision: torch.dtype | None) -> ModelState:
    """A gradient as it travels."""
    if precision is None:
        return gradient
    return {name: part.to(precision) for name, part in gradient.items()}


def widened(contribution: Contribution) -> Contribution:
    """The gradient in at least 32 bits, in which it can be added up."""
    wide = {n: g.float() if g.itemsize < 4 else g for n, g in contribution.gradient.items()}
    return dataclasses.replace(contribution, gradient=wide)


def _with(state: D, **changes: object) -> D:
    return cast(D, dataclasses.replace(cast(Any, state), **changes))
