"""Clients that train at the same time, each on one part of the processor.

A library's threads share a convolution badly: its gradient takes 0.7 of the time on two cores, not
0.5. Clients do not wait for each other.
"""

import contextvars
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

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
        threads, stop = torch.get_num_threads(), Event()

        def run(
            work: AnyClientWork, part: Sequence[Client]
        ) -> tuple[Sequence[Update | RefusedUpdateError], Profile]:
            torch.set_num_threads(max(1, threads // lanes))
            with stoppable(stop), profiling() as profile:
                return work.local_updates(task, message, part, randomness), profile

        with section("lanes"), ThreadPoolExecutor(lanes) as pool:
            try:
                begun = [
                    pool.submit(contextvars.copy_context().run, run, work, clients[lane::lanes])
                    for lane, work in enumerate(self.works[:lanes])
                ]
                done = [each.result() for each in begun]
            finally:
                stop.set()  # Else an interrupt waits for a whole cohort.
                torch.set_num_threads(threads)  # Threads to come follow who set it last.
        for _, profile in done:
            add_profile(profile)
        updates = [iter(own) for own, _ in done]
        return [next(updates[index % lanes]) for index in range(len(clients))]
