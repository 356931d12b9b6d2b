"""The clients' half of a synchronised step, for the clients of one process.

Clients of a process send sums, so that their images go through one network as one batch. Between
the trips of a step the process holds the graph of its forward pass; with the step it is gone.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from ccfcpp.core.profiling import section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import Exchange, SummedWork, Task
from ccfcpp.engine.synchronised.messages import Contribution, Known
from ccfcpp.engine.synchronised.plan import Plan
from ccfcpp.engine.synchronised.server import narrowed
from ccfcpp.engine.synchronised.tape import Tape
from ccfcpp.models.pooled import Program

Begin = Callable[[Task, Known, Sequence[Client], Randomness], Program | None]
"""Loads a model and makes the program of a step; None where the clients show no sample in it."""


class Advancing(Protocol):
    """A step on its way through its trips."""

    def advance(self, totals: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> Contribution:
        """Go on as far as what is known allows; see ``Tape``."""
        ...


class Process:
    """The steps that are open in a process.

    Args:
        begin: Makes the program of a step.
        parameters: What the gradient is wanted for, by name.
        plans: The plan of the first step, and that of all others.
        precision: The dtype in which gradients travel; None for their own.
    """

    def __init__(
        self,
        begin: Begin,
        parameters: Mapping[str, Tensor],
        plans: Callable[[], tuple[Plan, Plan]],
        precision: torch.dtype | None = None,
    ) -> None:
        self.begin = begin
        self.parameters = parameters
        self.plans = plans
        self.precision = precision
        self._open: dict[tuple[int, ...], tuple[Advancing | None, Plan]] = {}

    def open(
        self,
        plan: Plan,
        task: Task,
        known: Known,
        clients: Sequence[Client],
        randomness: Randomness,
    ) -> Advancing | None:
        """Begin a step; None where the clients show no sample in it."""
        program = self.begin(task, known, clients, randomness)
        return Tape(program, self.parameters) if program else None

    def advance(
        self, trip: int, task: Task, known: Known, clients: Sequence[Client], randomness: Randomness
    ) -> Contribution:
        """What some clients contribute to a trip.

        Args:
            trip: Its number in the step.
            task: The task of which it is.
            known: What came down.
            clients: Those whose step it is, alone or together.
            randomness: The source, set to the round.
        """
        ids = tuple(client.id for client in clients)
        if trip == 0:
            # Where something is known of a step before, this is not the first.
            plan = self.plans()[bool(known.totals or known.slopes)]
            self._open[ids] = self.open(plan, task, known, clients, randomness), plan
        tape, plan = self._open[ids]
        with section(f"trip {trip + 1}"):
            news = tape.advance(known.totals, known.slopes) if tape else plan.trips[trip]
        if not news.gradient:
            return news
        del self._open[ids]
        return dataclasses.replace(news, gradient=narrowed(news.gradient, self.precision))


class TripWork(SummedWork[Known, Contribution]):
    """One trip of a step.

    Args:
        process: The open steps.
        exchange: The trip's.
        number: Which trip of the step it is.
    """

    def __init__(
        self, process: Process, exchange: Exchange[Known, Contribution], number: int
    ) -> None:
        self.process = process
        self.exchange = exchange
        self.number = number

    def local_sum(
        self, task: Task, message: Known, clients: Sequence[Client], randomness: Randomness
    ) -> Contribution:
        """What some clients contribute together."""
        return self.process.advance(self.number, task, message, clients, randomness)


def trip_works(
    process: Process, exchanges: Sequence[Exchange[Known, Contribution]]
) -> list[TripWork]:
    """The clients' work of each trip of a step."""
    return [TripWork(process, exchange, number) for number, exchange in enumerate(exchanges)]
