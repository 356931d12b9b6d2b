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
Made = TypeVar("Made")

_PARTS_OF_A_THREAD = 4
"""That are in work at a time: what is made of all parts could fill the memory."""
_DEVICE_SHARE = 0.5
"""Share of an accelerator's memory that a cohort's training may take."""


@dataclass(frozen=True)
class Cohort:
    """The number of clients that are trained side by side.

    Attributes:
        threads: Number of threads of a processor.
        together: Number of clients in each thread, on streams of an accelerator.
    """

    threads: int
    together: int

    @property
    def clients(self) -> int:
        """Number of clients in all threads."""
        return self.threads * self.together


def choose_threads(wanted: Literal["auto"] | int, together: int, device: torch.device) -> int:
    """Return the number of threads that train the ``together`` clients of a round."""
    most = together if wanted == "auto" else min(wanted, together)
    return min(torch.get_num_threads(), most) if device.type == "cpu" else 1


def choose_cohort(
    wanted: Literal["auto"] | int, together: int, bytes_of_one: int, device: torch.device
) -> Cohort:
    """Return how many of the ``together`` clients of a round are trained side by side.

    ``auto`` stands for as many as fit into memory, each of which takes ``bytes_of_one``.
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
    function: Callable[[Part], Made],
    parts: Sequence[Part],
    threads: int | None = None,
    stop: Callable[[], None] = lambda: None,
) -> Generator[Made]:
    """Yield the result of a function for each part, in their order, computed in several threads.

    It is for work that PyTorch's own threads would not speed up much. Parts see the
    context variables of the caller.

    Args:
        function: Changes nothing that threads share.
        parts: Any number.
        threads: Divisor of PyTorch's threads; None: as many as there are parts.
        stop: Asks running threads to stop; called at the end, and after an interruption.
    """
    known = torch.get_num_threads()
    at_once = min(threads or known, len(parts))
    if at_once <= 1:
        yield from map(function, parts)
        return

    def run(part: Part) -> tuple[Made, Profile]:
        torch.set_num_threads(max(1, known // at_once))
        with profiling() as profile:
            return function(part), profile

    def finished(each: Future[tuple[Made, Profile]]) -> Made:
        made, profile = each.result()
        add_profile(profile)
        return made

    with ThreadPoolExecutor(at_once) as pool:
        begun = deque[Future[tuple[Made, Profile]]]()
        try:
            for part in parts:
                begun.append(pool.submit(contextvars.copy_context().run, run, part))
                if len(begun) == _PARTS_OF_A_THREAD * at_once:
                    yield finished(begun.popleft())
            while begun:
                yield finished(begun.popleft())
        finally:
            stop()
            pool.shutdown(cancel_futures=True)
            torch.set_num_threads(known)  # Threads to come follow who set it last.


def threaded(works: Sequence[ClientWork[Message, Update]]) -> ClientWork[Message, Update]:
    """Return one work that runs each given work in a thread; a single one stays as it is."""
    return ThreadedWork(works) if len(works) > 1 else works[0]


class ThreadedWork(ClientWork[Message, Update]):
    """The work of an exchange in several threads, each with a part of the clients.

    Args:
        works: The same work for each thread. They share nothing that one of them changes.
    """

    def __init__(self, works: Sequence[ClientWork[Message, Update]]) -> None:
        self.works = works
        self.exchange = works[0].exchange
        self.cohort = sum(work.cohort for work in works)

    def local_updates(
        self, task: Task, message: Message, clients: Sequence[Client], randomness: Randomness
    ) -> Sequence[Update | RefusedUpdateError]:
        """Distribute the clients to the threads; each part is in descending order of size again."""
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
