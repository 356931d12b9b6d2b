"""Timing of several functions, by turns; counts of operations, and peak memory."""

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

Seconds = dict[str, list[float]]
Figures = dict[str, float]
Work = Callable[[], object]
console = Console(stderr=True)


def time_by_turns(work: dict[str, Work], repeats: int) -> Seconds:
    """Time functions by turns, in the given and in reverse order; return all seconds by name."""
    seconds: Seconds = {name: [] for name in work}
    for number in range(repeats):
        ordered = list(work.items())
        for name, run in ordered if number % 2 == 0 else reversed(ordered):
            seconds[name].append(timed(run))
            console.print(f"{name}: {seconds[name][-1]:.4g} s")
    return seconds


def timed(run: Work) -> float:
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


def time_training(
    name: str, plain: Work, ours: Work, repeats: int, operations: float, square: Tensor
) -> tuple[Seconds, Figures]:
    """Time the plain training and ours by turns; relate their rates to that of matrix products.

    A call of either has so many floating-point ``operations``; ``square``, of shape (n, n), is
    multiplied by itself.
    """
    seconds = time_by_turns(
        {
            f"{len(square)}³ product": lambda: square @ square,
            f"{name}, plain": plain,
            f"{name}, ccfcpp": ours,
        },
        repeats,
    )
    product, *calls = map(statistics.median, seconds.values())
    rate = 2 * len(square) ** 3 / product
    shares = {
        f"share of it, {name}, {whose}": operations / call / rate
        for whose, call in zip(("plain", "ccfcpp"), calls, strict=True)
    }
    return seconds, {"product rate, GFLOP/s": rate / 1e9, **shares}


def training_operations(output: Callable[[], Tensor]) -> int:
    """Count the floating-point operations of a network's forward and backward pass.

    ``output`` makes the network and its output; it is called with ``meta`` as the default device.
    """
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        torch.autograd.backward(output().sum())
    count: int = counter.get_total_flops()
    return count


def measure_growth(arguments: Callable[[int], Sequence[str]]) -> Figures:
    """Measure with 10, 100 and 1,000 clients, each in a Python process of its own.

    ``arguments`` returns Python's for a number of clients; the process prints figures as JSON.
    """
    results: Figures = {}
    for clients in (10, 100, 1000):
        command = [sys.executable, *arguments(clients)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603 - its own
        for name, value in json.loads(output).items():
            results[f"{clients} clients: {name}"] = value
            console.print(f"{clients} clients: {name} {value:.4g}")
    return results


def peak_memory() -> Figures:
    """Return the peak memory of this process, on the processor and on the GPU."""
    return {
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "peak memory of the device, GB": torch.cuda.max_memory_allocated() / 1e9,
    }
