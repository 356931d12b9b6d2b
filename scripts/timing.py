"""Timing of several functions, by turns."""

import time
from collections.abc import Callable

import torch
from rich.console import Console

Seconds = dict[str, list[float]]
console = Console(stderr=True)


def time_by_turns(work: dict[str, Callable[[], object]], repeats: int) -> Seconds:
    """Time functions by turns, in the given and in reverse order; return all seconds by name."""
    seconds: Seconds = {name: [] for name in work}
    for number in range(repeats):
        ordered = list(work.items())
        for name, run in ordered if number % 2 == 0 else reversed(ordered):
            seconds[name].append(timed(run))
            console.print(f"{name}: {seconds[name][-1]:.4g} s")
    return seconds


def timed(run: Callable[[], object]) -> float:
    """Return the seconds of one call, until it has finished on the GPU, if there is one."""
    synchronise()
    began = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - began


def synchronise() -> None:
    """Wait until the GPU, if there is one, has finished all work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
