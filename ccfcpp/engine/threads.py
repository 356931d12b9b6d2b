"""Clients that train at the same time, each on one part of the processor or of an accelerator.

Threads inside an operation share a convolution badly: its gradient takes 0.7 of the time on two
cores, not 0.5. Clients do not wait for each other.
"""

import contextvars
import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Literal, TypeVar

import torch

from ccfcpp.core.profiling import Profile, add_profile, profiling, section
from ccfcpp.core.progress import stoppable
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import ClientWork, Message, RefusedUpdateError, Task, Update

Part = TypeVar("Part")
Result = TypeVar("Result")

_PARTS_OF_A_THREAD = 4
"""Parts per thread that are computed before results are taken, which limits the memory."""
_DEVICE_SHARE = 0.5
"""Share of an accelerator's memory that a cohort's training may take."""


@dataclass(frozen=True)
class Cohort:
    """Numbers of threads and of clients that are trained at the same time.

    Attributes:
        threads: Number of threads on a processor.
        together: Number of clients in each thread, each on a stream of an accelerator.
    """

    threads: int
    together: int

    @property
    def clients(self) -> int:
        """Number of clients in all threads."""
        return self.threads * self.together


def choose_threads(wanted: Literal["auto"] | int, together: int, device: torch.device) -> int:
    """Return how many threads train ``together`` clients: at most ``wanted``, 1 unless on a CPU."""
    most = together if wanted == "auto" else min(wanted, together)
    return min(torch.get_num_threads(), most) if device.type == "cpu" else 1


def choose_cohort(
    wanted: Literal["auto"] | int, together: int, bytes_of_one: int, device: torch.device
) -> Cohort:
    """Return how many clients of a round are trained at the same time.

    Args:
        wanted: The largest number; ``auto`` for as many as there are threads or memory.
        together: Number of clients in a round.
        bytes_of_one: Bytes of memory that the training of one client takes.
        device: Device of the training.
    """
    if device.type != "cuda":
        return Cohort(choose_threads(wanted, together, device), 1)
    if wanted != "auto":
        return Cohort(1, min(wanted, together))
    gc.collect()  # Trainers of an earlier run refer to themselves.
    # What PyTorch keeps for itself, from an earlier run, is free as well.
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    room = int(_DEVICE_SHARE * (torch.cuda.mem_get_info(device)[0] + kept))
    return Cohort(1, max(1, min(together, room // bytes_of_one)))


def map_in_threads(
    function: Callable[[Part], Result],
    parts: Sequence[Part],
    threads: int | None = None,
    stop: Callable[[], None] = lambda: None,
) -> Generator[Result]:
    """Apply a function to each element of ``parts`` in threads, and yield the results in order.

    This is for work that PyTorch's own threads would not speed up much. The function sees the
    caller's context variables.

    Args:
        function: Must not change anything that threads share.
        parts: Inputs of the function.
        threads: Number of threads, which share those of PyTorch; None: PyTorch's number.
        stop: Asks running threads to stop; called at the end, and after an interruption.
    """
    known = torch.get_num_threads()
    at_once = min(threads or known, len(parts))
    if at_once <= 1:
        yield from map(function, parts)
        return

    def run(part: Part) -> tuple[Result, Profile]:
        torch.set_num_threads(max(1, known // at_once))
        with profiling() as profile:
            return function(part), profile

    def finish(each: Future[tuple[Result, Profile]]) -> Result:
        result, profile = each.result()
        add_profile(profile)
        return result

    with ThreadPoolExecutor(at_once) as pool:
        begun = deque[Future[tuple[Result, Profile]]]()
        try:
            for part in parts:
                begun.append(pool.submit(contextvars.copy_context().run, run, part))
                if len(begun) == _PARTS_OF_A_THREAD * at_once:
                    yield finish(begun.popleft())
            while begun:
                yield finish(begun.popleft())
        finally:
            stop()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(known)  # Threads to come follow who set it last.


def threaded(works: Sequence[ClientWork[Message, Update]]) -> ClientWork[Message, Update]:
    """Combine copies of a ``ClientWork`` to one that runs in threads; a single one is returned."""
    return ThreadedWork(works) if len(works) > 1 else works[0]


class ThreadedWork(ClientWork[Message, Update]):
    """Clients' half of an exchange that runs in several threads, each with some of the clients.

    Args:
        works: A copy of the work for each thread; copies share nothing that one of them changes.
    """

    def __init__(self, works: Sequence[ClientWork[Message, Update]]) -> None:
        self.works = works
        self.exchange = works[0].exchange
        self.cohort = sum(work.cohort for work in works)

    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Update | RefusedUpdateError]:
        """Compute updates in threads; each thread gets every n-th client, large ones first."""
        threads = min(len(self.works), len(clients))
        if threads == 1:
            return self.works[0].local_updates(task, message, clients, randomness)
        stop = Event()

        def run(number: int) -> Iterator[Update | RefusedUpdateError]:
            with stoppable(stop):
                part = clients[number::threads]
                return iter(self.works[number].local_updates(task, message, part, randomness))

        with section("threads"):
            updates = list(map_in_threads(run, range(threads), threads, stop.set))
        return [next(updates[index % threads]) for index in range(len(clients))]
