"""Steps that are open in a process: one that is refused on its way leaves nothing behind."""

import gc
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError, Task
from ccfcpp.engine.synchronised.contract import Batch, StepMessage
from ccfcpp.engine.synchronised.descent import BatchPart, Descent, OpenSteps
from ccfcpp.engine.synchronised.optimizers import Adam
from ccfcpp.models.pooled import Objective, Pool, Program


class Points:
    """One point of each client, in a step of two trips."""

    def __init__(self) -> None:
        self.network = nn.Linear(2, 1)
        self.shown: list[weakref.ref[Tensor]] = []

    def program(self, points: Tensor) -> Program:
        z, total = yield Pool("z", self.network(points), lambda z: z.sum(dim=0).double())
        return Objective((z.double() - total).square().sum())

    def batch(
        self, task: Task, known: StepMessage, turns: Sequence[BatchPart], randomness: Randomness
    ) -> Batch:
        points = torch.ones(len(turns), 2)
        self.shown.append(weakref.ref(points))
        return Batch(self.program, (points,))


def opened() -> tuple[Points, OpenSteps]:
    points = Points()

    def rehearsal() -> Program:
        return points.program(torch.ones(1, 2))

    descent = Descent("step", points.network, rehearsal, Adam(0.1), 2, 2, "not told apart")
    return points, OpenSteps(descent, points, None)


def clients(*numbers: int) -> list[Client]:
    images = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    return [Client(number, f"client {number}", images) for number in numbers]


def test_a_step_that_has_no_end_leaves_no_graph() -> None:
    points, steps = opened()
    for number, there in enumerate((clients(0, 1), clients(0), clients(1))):
        steps.advance(0, Task("test", "step", number, 0), StepMessage(0), there, Randomness(0))
    gc.collect()
    assert [shown() is None for shown in points.shown] == [True, True, False]


def test_clients_of_one_step_do_not_disturb_each_other() -> None:
    _, steps = opened()
    task, after = Task("test", "step, trip 1", 0, 0), Task("test", "step, trip 2", 0, 1)
    for client in clients(0, 1):
        steps.advance(0, task, StepMessage(0), [client], Randomness(0))
    for client in clients(0, 1):
        total = {"z": torch.ones(1, dtype=torch.float64)}
        news = steps.advance(1, after, StepMessage(0, totals=total), [client], Randomness(0))
        assert news.gradient or news.slopes


def test_a_step_that_has_not_begun_does_not_go_on() -> None:
    """As in a process that was started again."""
    _, steps = opened()
    task = Task("test", "step, trip 2", 0, 1)
    with pytest.raises(RefusedUpdateError, match="has not begun"):
        steps.advance(1, task, StepMessage(0), clients(0), Randomness(0))
