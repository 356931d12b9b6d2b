"""Synchronised training of a network: each gradient step is over the batches of all clients.

The images of all clients of a process go through the network as one batch. Between the exchanges
of a step the process keeps the autograd graph of its forward pass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import SETUP, Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, Images, RefusedUpdateError, SummedWork, Task
from ccfcpp.engine.synchronised.contract import (
    PARTS,
    Advancing,
    Batch,
    Bounding,
    Contribution,
    D,
    DescentState,
    StepMessage,
    round_gradient,
)
from ccfcpp.engine.synchronised.cuda_graphs import CapturedSteps
from ccfcpp.engine.synchronised.optimizers import Optimizer
from ccfcpp.engine.synchronised.server import StepExchange
from ccfcpp.engine.synchronised.tape import Lags, Plan, Tape, rehearse_plans
from ccfcpp.models.pooled import Program, updated_parameters
from ccfcpp.models.state import ModelState
from ccfcpp.models.steps import make_recorder

EXCHANGE_NUMBER = ", trip "
"""Separator, in the names of exchanges, of the name of the training and the exchange's number."""
_MOST = 4.0
"""A client has at most this many times its usual number of images if others are absent."""


@dataclass(frozen=True)
class BatchPart:
    """A client's part of a step's batch: int64 indices of its images, on the images' device."""

    client: Client
    chosen: Tensor


class BatchMaker(Protocol):
    """Interface of an object that makes the batches of a training."""

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch | None:
        """Load the model of the message ``known``; return the batch of the images in ``turns``.

        Returns:
            The batch; None if there are no images.
        """


@dataclass(eq=False)
class Descent:
    """The training of one network by synchronised steps, for the server and for the clients.

    Attributes:
        name: Name of its exchanges.
        network: The network that is trained; the messages bring its weights.
        rehearsal: Makes the program (``ccfcpp.models.pooled``) of a step on a few images, for a
            trial run that shows which exchanges a step takes.
        optimizer: The optimizer, whose state the server keeps.
        batch: Number of images of all clients together in a step.
        samples: Number of images of all clients.
        largest: Upper bound of the norm of an image's contribution to a sum, by the name of the
            sum; or a text that says why there is none.
        precision: The dtype in which gradients are sent; None for their own.
        lags: Sums and gradients that later steps take from the step before.
        exact_steps: Number of steps at the start without ``lags``.
        uses_memory: Whether clients need their local states (``Client.memory``).
        known_trips: Number of exchanges of a step without lags; None: the trial run shows it.
        part: Prefix of the names of parameters that are trained.
    """

    name: str
    network: nn.Module
    rehearsal: Callable[[], Program]
    optimizer: Optimizer
    batch: int
    samples: int
    largest: Mapping[str, float] | str
    _: KW_ONLY
    precision: torch.dtype | None = None
    lags: Lags = Lags()  # noqa: RUF009 - it cannot change
    exact_steps: int = 1
    uses_memory: bool = False
    known_trips: int | None = None
    part: str = ""

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained, by name."""
        moved = updated_parameters(self.network)
        return {name: entry for name, entry in moved.items() if name.startswith(self.part)}

    @cached_property
    def images(self) -> Images | str:
        """Sampling rate of images and norm bounds of their contributions; or why there are none."""
        if isinstance(self.largest, str):
            return self.largest
        there = max(1, self.samples)
        return Images(min(1.0, self.batch / there), min(self.batch, there), self.largest)

    @cached_property
    def plans(self) -> tuple[Plan, Plan]:
        """The plans (lists of exchanges) of an exact step, and of a lagged one (see ``lags``)."""
        return rehearse_plans(lambda: Tape(self.rehearsal(), self.parameters), self.lags)

    @cached_property
    def exchanges(self) -> list[Exchange[StepMessage, Contribution]]:
        """The exchanges of an exact step (without lags), in order."""
        return [
            Exchange(
                f"{self.name}{EXCHANGE_NUMBER}{number + 1}",
                StepMessage,
                Contribution,
                PARTS,
                uses_memory=self.uses_memory and number == 0,
                images=self.images,
                follows=number > 0,
                remembers_parts=True,
            )
            for number in range(self.known_trips or len(self.plans[0].trips))
        ]

    def begin(self, model: ModelState) -> DescentState:
        """Return the server's training state before the first step that starts from a model."""
        return self.optimizer.begin({name: model[name] for name in self.parameters})

    def server_works(
        self, steps: range, share: Callable[[int], float], ends: bool = False
    ) -> list[StepExchange[D]]:
        """Return the server's half of all exchanges in some steps.

        Args:
            steps: Numbers of the steps.
            share: Maps a step's number to the factor of the learning rate.
            ends: Whether the training ends after these steps; else the next round continues it.
        """
        works: list[StepExchange[D]] = []
        for step in steps:
            plan = self.plans[step >= self.exact_steps]
            moves = self.begin, self.optimizer, share, self.precision
            for number, exchange in zip(range(len(plan.trips)), self.exchanges, strict=False):
                last = step == steps[-1] and number == len(plan.trips) - 1
                works.append(StepExchange(exchange, plan, number, *moves, ends=ends and last))
        return works

    def client_works(
        self, batches: BatchMaker, bounding: Bounding | None, least: int = 0, alone: bool = False
    ) -> list["StepWork"]:
        """Return the clients' half of each exchange of a step.

        ``bounding``, ``least`` and ``alone`` are those of ``ClientContext``.
        """
        steps = OpenSteps(self, batches, bounding, least, alone)
        return [StepWork(steps, exchange, n) for n, exchange in enumerate(self.exchanges)]


class OpenSteps:
    """The unfinished training steps of one process's clients, kept from exchange to exchange."""

    def __init__(
        self,
        descent: Descent,
        batches: BatchMaker,
        bounding: Bounding | None,
        least: int = 0,
        alone: bool = False,
    ) -> None:
        self.descent = descent
        self.batches = batches
        self.bounding = bounding
        self.least = least
        record = make_recorder(next(descent.network.parameters()).device) if alone else None
        self._whole = CapturedSteps(descent.parameters, record) if record else None
        self._open: dict[tuple[int, ...], tuple[Advancing | None, Plan]] = {}
        self._began = (-1, -1)

    def advance(
        self,
        number: int,
        task: Task,
        known: StepMessage,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> Contribution:
        """Return what clients add to the sums of exchange ``number``, from 0, of a step."""
        ids = tuple(client.id for client in clients)
        if number == 0:
            if self._began != (task.round, task.index):
                # A step with a refused update does not end, and its graph would stay.
                self._open.clear()
                self._began = task.round, task.index
            # If the first message has sums or gradients of the step before, this step lags.
            plan = self.descent.plans[bool(known.totals or known.slopes)]
            self._open[ids] = self._begin_step(plan, task, known, clients, randomness), plan
        if ids not in self._open:
            raise RefusedUpdateError("it has not begun this step")
        step, plan = self._open[ids]
        with section(f"trip {number + 1}"):
            update = step.advance(known.totals, known.slopes) if step else plan.trips[number]
        if not update.gradient:
            return update
        del self._open[ids]
        # A clipped gradient is not rounded, which could take it beyond its bound.
        precision = self.descent.precision if self.bounding is None else None
        return replace(update, gradient=round_gradient(update.gradient, precision))

    def _begin_step(
        self,
        plan: Plan,
        task: Task,
        known: StepMessage,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> Advancing | None:
        """Start a step of some clients, given its first message ``known``; None without images."""
        filling = self.descent.samples / max(1, task.samples or self.descent.samples)
        turns = [self._select(known.version, client, filling, randomness) for client in clients]
        views = randomness if self.bounding is None else self.bounding.views(randomness)
        batch = self.batches.batch(task, known, turns, views)
        if batch is None:
            return None
        descent = self.descent
        if self.bounding is not None:
            exchange = descent.exchanges[0]
            return self.bounding.open(
                exchange, descent.network, batch, descent.parameters, plan.trips
            )
        lagged, everyone = known.totals or known.slopes, sum(map(len, clients)) == task.samples
        if self._whole is not None and batch.course is not None and everyone and not lagged:
            return self._whole.begin(batch)
        return Tape(batch.program(*batch.shown), descent.parameters)

    def _select(
        self, step: int, client: Client, filling: float, randomness: Randomness
    ) -> BatchPart:
        """Select a client's images for a batch, ``filling`` times as many if others are absent."""
        share = self.descent.batch * len(client) / self.descent.samples
        source = randomness.of_client(client.id)
        if self.bounding is None:
            more = share * (min(max(filling, 1.0), _MOST) - 1)
            held, grouping = len(client), client.grouping
            chosen = select_images(held, share, step, source, self.least, more, grouping)
        else:
            # The privacy budget assumes this share, so that absent clients are not replaced.
            chosen = self.bounding.select_images(len(client), share, step, source)
        return BatchPart(client, chosen.to(client.images.device))


@dataclass(eq=False)
class StepWork(SummedWork[StepMessage, Contribution]):
    """Clients' half of one exchange of a synchronised training step."""

    steps: OpenSteps
    exchange: Exchange[StepMessage, Contribution]
    number: int

    def local_sum(
        self, task: Task, message: StepMessage, clients: Sequence[Client], randomness: Randomness
    ) -> Contribution:
        """Return the sum of what some clients add to the sums of the exchange."""
        return self.steps.advance(self.number, task, message, clients, randomness)


def select_images(
    samples: int,
    share: float,
    step: int,
    randomness: Randomness,
    least: int = 0,
    more: float = 0.0,
    grouping: Randomness | None = None,
) -> Tensor:
    """Select the images of a client that are in a step's batch.

    A client goes through its images in one random order after the other. Step s has those from
    position ⌊s q + u⌋ up to ⌊(s + 1) q + u⌋. Here q is the batch size times the client's share of
    all images, and u, a random number in [0, 1), keeps small clients from having an image in the
    same steps. So a step has about as many images as the batch size, for every partition, and each
    image is used about equally often.

    If other clients are absent, the ``more`` images that come next are in the batch, too.

    If ``least`` is above 1, images are used in groups of at least so many, always together, so
    that no difference between the sums of two steps reveals a smaller group. A client with fewer
    images has none in any step.

    Args:
        samples: Number of the client's images.
        share: Mean number of images in a step, q.
        step: Number of the step, s.
        randomness: Source of the client's random numbers.
        least: The fewest images in a group.
        more: Number of images beyond the share.
        grouping: Source of the random groups; None: ``randomness``.

    Returns:
        int64 indices; empty if no image is in this step.
    """
    source = randomness.at_round(SETUP)
    if least > 1:
        groups = samples // least
        if groups == 0:
            return torch.zeros(0, dtype=torch.int64)
        drawn = (grouping or source).at_round(SETUP).generator("groups")
        order, part = torch.randperm(samples, generator=drawn), groups / samples
        chosen = select_images(groups, share * part, step, randomness, more=more * part).tolist()
        # The last group also has the remaining images.
        ends = [samples if group == groups - 1 else (group + 1) * least for group in chosen]
        shown = (order[group * least : end] for group, end in zip(chosen, ends, strict=True))
        return torch.cat([order[:0], *shown])
    offset = float(torch.rand((), generator=source.generator("turn"), dtype=torch.float64))
    first = math.floor(step * share + offset)
    last = math.floor((step + 1) * share + more + offset)
    epochs = range(first // samples, max(first, last - 1) // samples + 1)
    # An order lasts for several rounds, so that it does not depend on the round.
    orders = [
        torch.randperm(samples, generator=source.generator(f"order {epoch}")) for epoch in epochs
    ]
    start = epochs.start * samples
    return torch.cat(orders)[first - start : last - start]
