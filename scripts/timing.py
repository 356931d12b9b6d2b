"""Alternating measurements of several functions."""

import time
from collections.abc import Callable

import torch
from rich.console import Console

Seconds = dict[str, list[float]]
console = Console(stderr=True)


def alternate(work: dict[str, Callable[[], object]], repeats: int) -> Seconds:
    """Measure the functions in turn, in order and in reverse order alternately."""
    seconds: Seconds = {name: [] for name in work}
    for number in range(repeats):
        ordered = list(work.items())
        for name, run in ordered if number % 2 == 0 else reversed(ordered):
            seconds[name].append(timed(run))
            console.print(f"{name}: {seconds[name][-1]:.4g} s")
    return seconds


def timed(run: Callable[[], object]) -> float:
    """Measure one call until it has finished on the device."""
    synchronise()
    began = time.perf_counter()
    run()
    synchronise()
    return time.perf_counter() - began


def synchronise() -> None:
    """Wait for the accelerator, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
