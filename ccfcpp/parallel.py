"""The runs of a study, in processes of their own."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from ccfcpp.environment import keep_freed_memory, use_processors
from ccfcpp.errors import FederationError
from ccfcpp.experiment import Experiment, StoppedError
from ccfcpp.run_folder import C
from ccfcpp.study import Planned, Study

_SECONDS_BETWEEN_LOOKS = 0.5

_stop: Event
"""In a run's process: whether it is to stop."""


def run_in_processes(
    study: Study[C],
    make: Callable[[C], Experiment[Any]],
    jobs: int,
    look: Callable[[], None],
    should_stop: Callable[[], bool],
) -> None:
    """Run what is not finished, several runs at once, which share the processors.

    Args:
        study: The runs.
        make: Makes the experiment of a configuration; a function or class of a module.
        jobs: How many run at once.
        look: Called at short intervals, and when a run has ended.
        should_stop: Likewise; once it says so the runs stop after their rounds.

    Raises:
        StoppedError: ``should_stop`` said so.
        Exception: What a run raised; the others are stopped.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(jobs, context, _begin, (jobs, stop))
    left = [planned for planned in study.runs if not study.is_finished(planned)]
    with _ctrl_c_ignored():
        pending = {pool.submit(_run, study.path, planned, make) for planned in left}
    try:
        look()
        while pending:
            done, pending = wait(pending, _SECONDS_BETWEEN_LOOKS, FIRST_COMPLETED)
            if should_stop() and not stop.is_set():
                stop.set()
                pending = {future for future in pending if not future.cancel()}
            for future in done:
                _raise_failure(future)
            look()
    except BaseException:
        # Without waiting: whoever asks twice has lost patience.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    pool.shutdown()
    if not all(map(study.is_finished, study.runs)):
        raise StoppedError


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Processes that are started here leave Ctrl-C, which reaches all of a terminal's, to this one.

    They inherit what is ignored: from their first instruction on, not only once they could say so.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _raise_failure(future: Future[None]) -> None:
    error = None if future.cancelled() else future.exception()
    if isinstance(error, BrokenProcessPool):
        raise FederationError(
            "the process of a run was killed, perhaps for want of memory: take fewer --jobs"
        )
    if error is not None and not isinstance(error, StoppedError):
        raise error


def _begin(jobs: int, stop: Event) -> None:
    global _stop
    _stop = stop
    keep_freed_memory()
    use_processors(jobs)


def _run(path: Path, planned: Planned[C], make: Callable[[C], Experiment[Any]]) -> None:
    if _stop.is_set():
        raise StoppedError
    experiment, folder = Study(path, [planned]).opened(planned, make)
    experiment.run(folder, should_stop=_stop.is_set)
