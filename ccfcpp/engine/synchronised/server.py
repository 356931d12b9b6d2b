"""The server's half of a synchronised step: it adds up contributions, and updates the model.

A pooled sum, such as that of the predictions, is over the images of all clients. So the server adds
the last summand of each absent client, as SAG does with gradients (Le Roux, Schmidt and Bach, *A
Stochastic Gradient Method with an Exponential Convergence Rate for Finite Training Sets*, NeurIPS
2012). With secure sums or noise it has no single client's summands, and adds none. If no client is
absent, the step is exact.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Metrics, RefusedUpdateError, ServerWork
from ccfcpp.engine.payload import pack, replace_fields, sum_updates
from ccfcpp.engine.synchronised.contract import (
    ClientContribution,
    Contribution,
    D,
    DescentState,
    StepMessage,
    current_version,
    round_gradient,
)
from ccfcpp.engine.synchronised.optimizers import Optimizer
from ccfcpp.engine.synchronised.tape import Plan
from ccfcpp.engine.update_format import UpdateFormat, format_of
from ccfcpp.models.pooled import running_statistics
from ccfcpp.models.state import ModelState

_ALWAYS = torch.ones(2, dtype=torch.float64)
"""Counts (``_tally_of``) of a summand over all of a client's images, in every step."""


@dataclass(eq=False)
class StepExchange(ServerWork[D, StepMessage, Contribution]):
    """Server's half of one exchange of a synchronised training step.

    Attributes:
        plan: All exchanges of the step.
        number: Number of the exchange in its step, from 0.
        begin: Makes the initial training state from a model.
        share: Maps a step's number to the factor of the learning rate.
        precision: The dtype in which gradients are sent; None for their own.
        ends: Whether the training ends with this exchange; its state is then deleted.
    """

    exchange: Exchange[StepMessage, Contribution]
    plan: Plan
    number: int
    begin: Callable[[ModelState], DescentState]
    optimizer: Optimizer
    share: Callable[[int], float]
    precision: torch.dtype | None = None
    ends: bool = False

    def broadcast(self, state: D) -> StepMessage:
        """Return the message with those pooled sums and gradients that clients still lack."""
        descent = self._descent(state)
        return StepMessage(
            current_version(state),
            state.model if self.number == 0 else {},
            *self.plan.new_values(self.number, descent.totals, descent.slopes),
        )

    def update_format(self, message: StepMessage) -> UpdateFormat:
        """Return a contribution's tensor names, shapes and dtypes; gradients have ``precision``."""
        wanted = self.plan.trips[self.number]
        travels = round_gradient(wanted.gradient, self.precision)
        return format_of(pack(dataclasses.replace(wanted, gradient=travels)))

    def check(self, message: StepMessage, update: Contribution, senders: Sequence[Member]) -> None:
        """Refuse a contribution with sums that no batch can have, such as a negative count."""
        for name, part in update.sums.items():
            if not self.plan.valid[name](part):
                raise RefusedUpdateError(f"the sums of {name} are those of no batch")

    def attributed(self, update: Contribution, senders: Sequence[int]) -> Contribution:
        """Add its number to a single client's contribution; return that of several as it is."""
        return (
            ClientContribution(**vars(update), client=senders[0]) if len(senders) == 1 else update
        )

    def project_noisy(self, message: StepMessage, update: Contribution) -> Contribution:
        """Replace each noisy sum by the nearest one that a batch can have."""
        sums = {name: self.plan.nearest[name](part) for name, part in update.sums.items()}
        return dataclasses.replace(update, sums=sums)

    def aggregate(
        self, state: D, updates: Iterable[Contribution], randomness: Randomness
    ) -> tuple[D, Metrics]:
        """Add up the contributions; in the last exchange of the step, update the model, too."""
        before = self._descent(state)
        parts, present = dict(before.parts), set[int]()
        total = sum_updates(_store_parts(updates, parts, present))
        descent = dataclasses.replace(
            before,
            totals=before.totals | add_absent_parts(total.sums, parts, present),
            slopes=before.slopes | total.slopes,
            parts=parts,
        )
        if not total.gradient:
            return replace_fields(state, descent=descent), {}
        return self._update(state, descent, total)

    def without_updates(self, state: D) -> D:
        """Return the state after a step without a result: the next one has another version."""
        descent = self._descent(state)
        descent = dataclasses.replace(descent, lost=(descent.lost or 0) + 1)
        return replace_fields(state, descent=descent)

    def _descent(self, state: D) -> DescentState:
        """Return the state of the training; a new one if there is none, or another's is left."""
        before, wanted = state.descent, self.plan.trips[-1].gradient.keys()
        if before is not None and wanted <= before.first.keys():
            return before
        return dataclasses.replace(self.begin(state.model), lost=before.lost if before else None)

    def _update(self, state: D, descent: DescentState, total: Contribution) -> tuple[D, Metrics]:
        parameters = {n: entry for n, entry in state.model.items() if n in total.gradient}
        gradient = {n: total.gradient[n].to(entry.dtype) for n, entry in parameters.items()}
        share = self.share(descent.steps)
        moved, after = self.optimizer.step(parameters, gradient, descent, share)
        model = state.model | moved | _statistics(state.model, descent.totals)
        steps, own = descent.steps + 1, total.figures
        after = dataclasses.replace(after, steps=steps, figures=own, lost=None)
        figures = {name: float(figure) for name, figure in own.items()}
        kept, version = None if self.ends else after, current_version(state) + 1
        return replace_fields(state, model=model, version=version, descent=kept), figures


def _statistics(model: ModelState, totals: dict[str, Tensor]) -> ModelState:
    """Return the new running statistics of the model's batch normalisations, from their sums."""
    buffers: ModelState = {}
    for name, sums in totals.items():
        if f"{name}.running_mean" in model:
            buffers |= running_statistics(model, name, sums)
    return buffers


def _store_parts(
    updates: Iterable[Contribution], parts: dict[str, Tensor], present: set[int]
) -> Iterator[Contribution]:
    """Yield contributions; store single clients' sums in ``parts``, their numbers in ``present``.

    If one of the contributions is of several clients, ``parts`` is empty at the end.
    """
    merged = False
    for update in updates:
        if isinstance(update, ClientContribution):
            present.add(update.client)
            for name, part in update.sums.items():
                key, tally = client_part_name(update.client, name), _tally_of(update.client, name)
                has_images = bool(part.any())
                step = torch.tensor([has_images, 1], dtype=torch.float64)
                parts[tally] = parts.get(tally, torch.zeros_like(step)).cpu() + step
                # A client without an image in this step keeps its part of an earlier step.
                if has_images:
                    parts[key] = part
        else:
            merged = True
        yield widen_gradient(update)
    if merged:  # Which clients are in it, and which are absent, is not known.
        parts.clear()


def add_absent_parts(
    sums: Mapping[str, Tensor], parts: Mapping[str, Tensor], present: Collection[int]
) -> dict[str, Tensor]:
    """Return pooled sums to which the last summands of absent clients have been added.

    For a client that has an image in one of ten steps, a tenth of its summand is added.

    Args:
        sums: Sums over the clients that take part, by name.
        parts: Last summands of clients, by ``client_part_name``.
        present: Numbers of the clients that take part; empty if no client's summand is known.
    """
    totals = dict(sums)
    known = sorted({int(key.partition("/")[0]) for key in parts}) if present else []
    for client in (each for each in known if each not in present):
        for name in list(totals):
            if (part := parts.get(client_part_name(client, name))) is not None:
                shown, steps = parts.get(_tally_of(client, name), _ALWAYS).tolist()
                totals[name] = totals[name] + shown / steps * part
    return totals


def _tally_of(client: int, name: str) -> str:
    """Return the key in ``DescentState.parts`` of a client's counts: [steps with images, steps]."""
    return client_part_name(client, f"{name} in steps")


def client_part_name(client: int, name: str) -> str:
    """Return the key in ``DescentState.parts`` of a client's summand of the pooled sum ``name``."""
    return f"{client}/{name}"


def widen_gradient(contribution: Contribution) -> Contribution:
    """Convert a contribution's gradient to at least 32 bits, so that it can be added up."""
    wide = {n: g.float() if g.itemsize < 4 else g for n, g in contribution.gradient.items()}
    return Contribution(contribution.sums, contribution.slopes, wide, contribution.figures)
