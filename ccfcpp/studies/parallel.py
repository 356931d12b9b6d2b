"""Runs of a study in separate processes."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from pathlib import Path
from types import FrameType

import torch

from ccfcpp.core.config_layers import C
from ccfcpp.core.errors import FederationError, StoppedError, UsageError
from ccfcpp.core.torchrun import process_count
from ccfcpp.runs.environment import keep_freed_memory, use_processors
from ccfcpp.runs.signals import handled_by
from ccfcpp.studies.grids import PlannedRun
from ccfcpp.studies.study import Study, refuse_failures

_POLL_SECONDS = 0.5
_MOST_JOBS = 61
"""The most processes that Windows can wait for."""
_DIED = "its process, or another's, died, perhaps for want of memory: take fewer --jobs"
_SECONDS_TO_CONFIRM = 10.0
"""Time after SIGTERM in which the parent process must set ``_stop``."""

_stop: Event
"""Event that the parent process sets to make the runs of all worker processes stop."""


def run_in_processes(
    study: Study[C],
    jobs: int,
    look: Callable[[], None],
    should_stop: Callable[[], bool],
) -> None:
    """Run all unfinished runs of a study in worker processes, ``jobs`` at a time.

    Args:
        study: The study.
        jobs: Number of runs at once.
        look: Called twice a second, and when a run has ended, to show progress.
        should_stop: Called as often; once it returns true, each run stops after its round.

    Raises:
        StoppedError: ``should_stop`` returned true.
        FederationError: Some runs failed (the message names them); all others are finished.
    """
    if process_count() > 1:
        if jobs > 1:
            raise UsageError(
                f"--jobs {jobs} is refused under torchrun, whose processes share each run: leave "
                "one of them out"
            )
        study.run(
            lambda _, run, folder: run.run(folder, should_stop=should_stop), look, should_stop
        )
        return
    unfinished = [planned for planned in study.runs if not study.is_finished(planned)]
    if not unfinished:
        look()
        return
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(
        min(jobs, len(unfinished), _MOST_JOBS), context, _init_worker, (jobs, stop)
    )
    # Workers ignore Ctrl-C, which goes to the whole process group and which this process handles.
    # Except on Windows they inherit that, so that it holds from their first instruction on.
    with handled_by(signal.SIG_IGN):
        runs = {pool.submit(_run, study.path, planned): planned for planned in unfinished}
    try:
        look()
        pending = set(runs)
        while pending:
            _, pending = wait(pending, _POLL_SECONDS, FIRST_COMPLETED)
            if should_stop() and not stop.is_set():
                stop.set()
                pending = {future for future in pending if not future.cancel()}
            look()
    except BaseException:
        # Without waiting, since the user has interrupted twice.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.kill()
        raise
    pool.shutdown()
    folders: dict[str, list[Path]] = {}
    for future, run in runs.items():
        if reason := _failure_reason(future, stop.is_set()):
            folders.setdefault(reason, []).append(run.folder)
    refuse_failures(folders, len(runs))
    if stop.is_set():
        raise StoppedError


def _failure_reason(future: Future[None], stopping: bool) -> str | None:
    """Return why a run failed; None if it is finished or was stopped.

    While runs are stopping (``stopping``), the death of a process is no failure. Unexpected errors
    are raised again.
    """
    error = None if future.cancelled() else future.exception()
    if isinstance(error, BrokenProcessPool):
        return None if stopping else _DIED
    if isinstance(error, FederationError | UsageError | OSError | torch.OutOfMemoryError):
        return str(error)
    if error is not None and not isinstance(error, StoppedError):
        raise error
    return None


def _init_worker(jobs: int, stop: Event) -> None:
    """Initialise a worker process: its signal handlers and its share of the processor cores."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _handle_sigterm)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    use_processors(jobs)


def _handle_sigterm(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM in a worker: exit, unless the parent process asks all runs to stop soon.

    A SIGTERM for the whole group also reaches the parent, which sets ``_stop``. Otherwise it was
    for this worker alone, as when the pool ends all workers after one died.
    """

    def wait_for_stop() -> None:
        if not _stop.wait(_SECONDS_TO_CONFIRM):
            os._exit(1)

    threading.Thread(target=wait_for_stop, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent process has died, so that no run overlaps with a later study."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(path: Path, planned: PlannedRun[C]) -> None:
    if _stop.is_set():
        raise StoppedError
    run, folder = Study(path, [planned]).open_run(planned)
    run.run(folder, should_stop=_stop.is_set)
