"""Clients that train in several threads; results in order, few at a time, stopped by an error."""

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from threading import Barrier, Event, Thread, Timer

import pytest
import torch

from ccfcpp.core.profiling import profiling, section
from ccfcpp.core.progress import (
    CutShortError,
    RoundProgress,
    report_images,
    report_progress_to,
    stoppable,
)
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import RefusedUpdateError, Task
from ccfcpp.engine.threads import ThreadedWork, map_in_threads, threaded
from tests.support.clustering import clients_of_sizes, run_small, small_config
from tests.support.election import HOPELESS, Mean, Vote, Voting, voters

TASK = Task("election", "vote", 0, 0)
MESSAGE = Mean(torch.zeros(2))


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def four_clients() -> list[Client]:
    return clients_of_sizes(40, 30, 25, 9)


@pytest.mark.parametrize("training", ["pretrain_rounds=2", "pretrain_rounds=0"])
def test_a_run_in_two_threads_has_the_bits_of_one(training: str) -> None:
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


def test_updates_come_in_the_order_of_the_clients() -> None:
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
            report_images(1, 1)


def test_an_interrupt_ends_all_threads() -> None:
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
            report_images(len(clients), 1)
            return super().local_updates(task, message, clients, randomness)


def test_progress_and_times_of_all_threads_are_counted() -> None:
    pace = RoundProgress(4, lambda: None)
    with report_progress_to(pace), profiling() as profile:
        ThreadedWork([Slow(), Slow()]).local_updates(
            TASK, MESSAGE, voters(0, 1, 2, 3), Randomness(0)
        )
    assert pace.share == 1.0
    assert profile.calls["vote"] == 2


def test_work_that_is_not_stopped_goes_on() -> None:
    stop = Event()
    with stoppable(stop):
        report_images(1, 1)
        stop.set()
        with pytest.raises(CutShortError):
            report_images(1, 1)
    report_images(1, 1)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_the_order_of_their_parts(threads: int) -> None:
    assert list(map_in_threads(lambda x: x * x, range(50), threads)) == [x * x for x in range(50)]
    assert torch.get_num_threads() == 2


def test_parts_are_done_at_the_same_time_and_see_the_callers_context() -> None:
    both, word = Barrier(2, timeout=30), ContextVar[str]("word")
    word.set("seen")

    def wait(_: int) -> tuple[str, int]:
        both.wait()  # A single thread would wait for ever.
        return word.get(), torch.get_num_threads()

    assert list(map_in_threads(wait, range(2))) == [("seen", 1)] * 2


def test_few_parts_are_begun_before_the_first_result_is_used() -> None:
    begun, go = list[int](), Event()

    def work(part: int) -> None:
        begun.append(part)
        assert part < 2 or go.wait(30)

    results = map_in_threads(work, range(100))
    next(results)
    Timer(0.3, go.set).start()
    results.close()
    assert len(begun) <= 4  # Two are done and two at work: the others are never begun.
    thread = Thread(target=lambda: begun.append(-torch.get_num_threads()))
    thread.start()
    thread.join()
    assert begun[-1] == -2


def test_an_error_in_a_part_asks_the_others_to_stop() -> None:
    stop = Event()

    def work(part: int) -> bool:
        if part == 0:
            raise ValueError("the first part failed")
        return stop.wait(30)

    with pytest.raises(ValueError, match="the first part"):
        list(map_in_threads(work, range(2), 2, stop.set))
    assert stop.is_set()


def test_seconds_in_threads_are_counted() -> None:
    def work(_: int) -> None:
        with section("work"):
            pass

    with profiling() as profile:
        list(map_in_threads(work, range(5)))
    assert profile.calls == {"work": 5, "other": 1}
