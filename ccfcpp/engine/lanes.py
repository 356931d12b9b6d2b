"""Clients that train at the same time, each on one part of the processor.

A library's threads share a convolution badly: its gradient takes 0.7 of the time on two cores, not
0.5. Clients do not wait for each other.
"""

import contextvars
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TypeVar

import torch

from ccfcpp.core.pace import stoppable
from ccfcpp.core.profiling import Profile, add_profile, profiling, section
from ccfcpp.core.randomness import Randomness
from ccfcpp.engine.client import Client
from ccfcpp.engine.exchange import (
    AnyClientWork,
    ClientWork,
    Message,
    RefusedUpdateError,
    Task,
    Update,
)

Part = TypeVar("Part")
Made = TypeVar("Made")

_PARTS_OF_A_THREAD = 4
"""That are in work at a time: what is made of all parts could fill the memory."""


def mapped(
    function: Callable[[Part], Made],
    parts: Sequence[Part],
    threads: int | None = None,
    stop: Callable[[], None] = lambda: None,
) -> Generator[Made]:
    """What a function makes of each part, in their order, in several threads.

    It is for work of which PyTorch's own threads would not share a large part. Parts see the
    context variables of the caller.

    Args:
        function: Shares nothing that it changes.
        parts: Any number.
        threads: Among which PyTorch's are shared out; None: as many as these.
        stop: Asks threads that still work to stop; called in the end, and after an interruption.
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


def in_lanes(works: Sequence[ClientWork[Message, Update]]) -> ClientWork[Message, Update]:
    """One work for as many threads as works are given; a single one stays what it is."""
    return Lanes(works) if len(works) > 1 else works[0]


class Lanes(ClientWork[Message, Update]):
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
        """Deal the clients to the threads; each part is in descending order of size again."""
        lanes = min(len(self.works), len(clients))
        if lanes == 1:
            return self.works[0].local_updates(task, message, clients, randomness)
        stop = Event()

        def run(
            lane: tuple[AnyClientWork, Sequence[Client]],
        ) -> Sequence[Update | RefusedUpdateError]:
            work, part = lane
            with stoppable(stop):
                return work.local_updates(task, message, part, randomness)

        parts = [(work, clients[lane::lanes]) for lane, work in enumerate(self.works[:lanes])]
        with section("lanes"):
            done = list(mapped(run, parts, lanes, stop.set))
        updates = [iter(own) for own in done]
        return [next(updates[index % lanes]) for index in range(len(clients))]
