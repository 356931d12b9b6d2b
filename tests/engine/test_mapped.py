"""What is made in threads: in the order of the parts, few at a time, and stopped by an error."""

import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest
import torch

from ccfcpp.core.profiling import profiling, section
from ccfcpp.engine.threads import map_in_threads


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_come_in_the_order_of_their_parts(threads: int) -> None:
    assert list(map_in_threads(lambda x: x * x, range(50), threads)) == [x * x for x in range(50)]
    assert torch.get_num_threads() == 2


def test_parts_are_done_at_the_same_time_and_see_the_callers_context() -> None:
    both, word = threading.Barrier(2, timeout=30), ContextVar[str]("word")
    word.set("seen")

    def wait(_: int) -> tuple[str, int]:
        both.wait()  # A single thread would wait for ever.
        return word.get(), torch.get_num_threads()

    assert list(map_in_threads(wait, range(2))) == [("seen", 1)] * 2


def test_few_parts_are_begun_before_the_first_result_is_used() -> None:
    begun, go = list[int](), threading.Event()

    def work(part: int) -> None:
        begun.append(part)
        assert part < 2 or go.wait(30)

    results = map_in_threads(work, range(100))
    next(results)
    threading.Timer(0.3, go.set).start()
    results.close()
    assert len(begun) <= 4  # Two are done and two at work: the others are never begun.
    thread = threading.Thread(target=lambda: begun.append(-torch.get_num_threads()))
    thread.start()
    thread.join()
    assert begun[-1] == -2


def test_an_error_in_a_part_asks_the_others_to_stop() -> None:
    stop = threading.Event()

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
