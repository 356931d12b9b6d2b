"""Clients that train in several threads."""

from collections.abc import Iterator, Sequence
from threading import Event

import pytest
import torch

from ccfcpp.core.pace import CutShortError, Pace, followed, stoppable, tell_images
from ccfcpp.core.profiling import profiling, section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError, Task
from ccfcpp.engine.threads import ThreadedWork, threaded
from tests.support.clustering import clients_of_sizes, run_small, small_config
from tests.support.election import HOPELESS, Mean, Vote, Voting, voters

TASK = Task("election", "vote", 0, 0)
MESSAGE = Mean(torch.zeros(2))


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def four_clients() -> list[Client]:
    return clients_of_sizes(40, 30, 25, 9)


@pytest.mark.parametrize("training", ["pretrain_rounds=2", "pretrain_rounds=0"])
def test_a_run_in_two_threads_has_the_bits_of_one(two_threads: None, training: str) -> None:
    settings = (f"training.{training}", "training.rounds=2")
    both, reports = run_small(small_config(*settings, "compute.cohort=2"), four_clients())
    torch.set_num_threads(1)
    alone, expected = run_small(small_config(*settings, "compute.cohort=1"), four_clients())
    assert [each.figures for each in reports] == [each.figures for each in expected]
    assert both.centroids is not None
    assert alone.centroids is not None
    assert torch.equal(both.centroids, alone.centroids)
    for name, entry in alone.model.items():
        assert torch.equal(both.model[name], entry), name


def test_updates_come_in_the_order_of_the_clients(two_threads: None) -> None:
    clients, threads = voters(4, 0, HOPELESS, 1), ThreadedWork([Voting(), Voting()])
    found = threads.local_updates(TASK, MESSAGE, clients, Randomness(0))
    alone = [Voting().local_updates(TASK, MESSAGE, [each], Randomness(0)) for each in clients]
    for one, (other,) in zip(found, alone, strict=True):
        if isinstance(other, Vote):
            assert isinstance(one, Vote)
            assert torch.equal(one.value, other.value)
        else:
            assert isinstance(one, RefusedUpdateError)
    assert torch.get_num_threads() == 2


def test_a_single_thread_is_the_work_itself() -> None:
    work = Voting()
    assert threaded([work]) is work
    assert threaded([work, Voting()]).cohort == 4


class Endless(Voting):
    """Trains until it is stopped; the first client fails."""

    begun = Event()

    def local_updates(
        self, task: Task, message: Mean, clients: Sequence[Client], randomness: Randomness
    ) -> list[Vote | RefusedUpdateError]:
        if clients[0].id == 0:
            self.begun.wait(10)
            raise KeyboardInterrupt
        while True:
            self.begun.set()
            tell_images(1, 1)


def test_an_interrupt_ends_all_threads(two_threads: None) -> None:
    with pytest.raises(KeyboardInterrupt):
        ThreadedWork([Endless(), Endless()]).local_updates(
            TASK, MESSAGE, voters(0, 1), Randomness(0)
        )
    assert torch.get_num_threads() == 2


class Slow(Voting):
    """Reports an image of each client, in a section."""

    def local_updates(
        self, task: Task, message: Mean, clients: Sequence[Client], randomness: Randomness
    ) -> list[Vote | RefusedUpdateError]:
        with section("vote"):
            tell_images(len(clients), 1)
            return super().local_updates(task, message, clients, randomness)


def test_progress_and_times_of_all_threads_are_counted(two_threads: None) -> None:
    pace = Pace(4, lambda: None)
    with followed(pace), profiling() as profile:
        ThreadedWork([Slow(), Slow()]).local_updates(
            TASK, MESSAGE, voters(0, 1, 2, 3), Randomness(0)
        )
    assert pace.share == 1.0
    assert profile.calls["vote"] == 2


def test_work_that_is_not_stopped_goes_on() -> None:
    stop = Event()
    with stoppable(stop):
        tell_images(1, 1)
        stop.set()
        with pytest.raises(CutShortError):
            tell_images(1, 1)
    tell_images(1, 1)
