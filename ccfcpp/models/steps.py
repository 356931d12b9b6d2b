"""Steps of local training: captured on an accelerator, and several clients side by side.

The training of a client is a generator that yields after each step. On a CPU one client after the
other is trained (``ccfcpp.engine.threads`` has several threads). On a GPU clients take turns, each
on its own CUDA stream, since one client's small kernels do not fill it. There a step is also
captured once as a CUDA graph, which then starts its hundreds of kernels at once.
"""

import gc
import warnings
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ccfcpp.core.profiling import section

T = TypeVar("T")
Training = Generator[None, None, T]
"""The training of a client, which yields after each step and returns its result."""

Replay = Callable[[], None]
Record = Callable[[Callable[[], None]], Replay]
"""Captures a step without running it, and returns a function that runs it."""

_WARM_UP = 3
"""Steps before a capture, in which libraries choose and prepare their kernels."""


_failed: list[tuple[torch.cuda.CUDAGraph, str]] = []
"""Graphs whose capture failed, and why. PyTorch's allocator still counts on them, so they are never
deleted, and nothing is captured any more."""


def capture_failure() -> str | None:
    """Return why this process captures no more steps as CUDA graphs; None if it still does."""
    return _failed[0][1] if _failed else None


class CudaGraphs:
    """Recorder that captures the steps of one trainer as CUDA graphs, which share memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: Callable[[], None]) -> Replay:
        """Capture a step as a CUDA graph, and return the function that replays it.

        On the default stream, which cannot capture, a side stream is used.

        Raises:
            RuntimeError: The step cannot be captured, or an earlier capture has failed.
        """
        if reason := capture_failure():
            raise RuntimeError(reason)
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        stream = None if here == torch.cuda.default_stream() else here
        mode = "thread_local"
        # A deleted graph clears the workspaces of its stream, so this one must get new ones.
        torch._C._cuda_clearCublasWorkspaces()
        collects = gc.isenabled()
        gc.disable()  # no graph may be deleted meanwhile
        try:
            with torch.cuda.graph(graph, self._pool, stream, capture_error_mode=mode):
                step()
        except RuntimeError as error:  # The end of the capture fails, too, and says less.
            _failed.append((graph, str(error.__context__ or error)))
            raise RuntimeError(_failed[0][1]) from error
        finally:
            if collects:
                gc.enable()
            torch.cuda.set_stream(here)  # which a capture that failed does not do
        replay: Replay = graph.replay
        return replay


def make_recorder(device: torch.device) -> Record | None:
    """Return an object that captures a trainer's steps as CUDA graphs; None on a CPU."""
    return CudaGraphs() if device.type == "cuda" else None


class Inputs:
    """Named tensors that training steps read.

    If steps are captured, a new value is copied over the old one of the same name, so that its
    address stays. A value that does not fit gets new memory, and steps are captured again.

    Args:
        device: Device of the tensors.
        record: Captures steps; None if they are not captured.
    """

    def __init__(self, device: torch.device, record: Record | None) -> None:
        self.device, self.record = device, record
        self.moved = 0
        self._held: dict[str, Any] = {}
        self._places: dict[str, Tensor] = {}

    def put(self, name: str, value: object) -> None:
        """Set the value of a name: a tensor, a dataclass of tensors, or None."""
        self._held[name] = self._placed(name, value)

    def __getitem__(self, name: str) -> Any:
        """Return a value; if steps are captured, it may have extra rows of an older value."""
        return self._held[name]

    def _placed(self, name: str, value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            parts = {key: self._placed(f"{name}.{key}", own) for key, own in vars(value).items()}
            return replace(value, **parts)
        if not isinstance(value, Tensor):
            return value
        if self.record is None:
            return value.to(self.device)
        place = self._places.get(name)
        if place is None or not _has_room(place, value):
            self.moved += 1
            self._places[name] = value.to(self.device, copy=True)
        elif place.dim():
            if place.is_cuda and not value.is_cuda:  # else the copy would wait for the device
                value = value.pin_memory()
            place[: len(value)].copy_(value, non_blocking=True)
        else:
            place.copy_(value)
        return self._places[name]


def _has_room(place: Tensor, value: Tensor) -> bool:
    alike = place.dtype == value.dtype and place.shape[1:] == value.shape[1:]
    return alike and place.dim() == value.dim() and (not place.dim() or len(place) >= len(value))


class Step:
    """A training step that is captured as a graph if it is repeated.

    It must read and write tensors at fixed addresses, draw no random numbers, and not wait for
    results. If it cannot be captured, such as for data-dependent control flow, it runs as it is,
    with a warning.

    Args:
        run: The step. Its arguments are the number of samples in the batch, and all other values
            that its operations depend on.
        whole: The number of samples for which it is captured; other batches run as they are.
        inputs: The tensors that it reads.
    """

    def __init__(self, run: Callable[..., None], whole: int, inputs: Inputs) -> None:
        self._run, self._whole, self._inputs = run, whole, inputs
        self._record = inputs.record
        self._moved = inputs.moved
        self._calls: dict[tuple[Hashable, ...], int] = {}
        self._replays: dict[tuple[Hashable, ...], Replay] = {}

    def __call__(self, samples: int, *others: Hashable) -> None:
        """Run the step, or replay its graph, with the arguments of ``run``."""
        if self._record is None or samples != self._whole:
            self._run(samples, *others)
            return
        if self._moved != self._inputs.moved:
            self._replays.clear()
            self._moved = self._inputs.moved
        key = samples, *others
        self._calls[key] = calls = self._calls.get(key, 0) + 1
        if calls <= _WARM_UP:
            self._run(*key)
            return
        if key not in self._replays:
            self._replays[key] = self._capture(self._record, key)
        with section("training: captured step"):
            self._replays[key]()

    def _capture(self, record: Record, key: tuple[Hashable, ...]) -> Replay:
        def run() -> None:
            self._run(*key)

        try:
            return record(run)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            warnings.warn(
                f"training steps run without a CUDA graph, which is slower: {reason}", stacklevel=2
            )
            self._record = None
            return run


def batch_lengths(samples: int, size: int, least: int = 0) -> list[int]:
    """Return the number of samples in each batch; a rest below a floor joins the batch before."""
    lengths = [min(size, samples - start) for start in range(0, samples, size)]
    # Left out, or as a batch of its own, a small rest would tell of few samples.
    return [*lengths[:-2], sum(lengths[-2:])] if 0 < samples % size < least else lengths


class Batches:
    """The random batches of a client's epochs.

    Args:
        inputs: ``Inputs`` of the steps; an epoch's order of the samples is put there as ``order``.
        batch_size: Number of samples in a batch; the last one may be smaller.
        least: Fewest samples of a batch; a smaller rest joins the batch before.
    """

    def __init__(self, inputs: Inputs, batch_size: int, least: int = 0) -> None:
        self._inputs, self._size, self._least = inputs, batch_size, least
        self._next = torch.zeros(1, dtype=torch.int64, device=inputs.device)

    def shuffle(self, samples: int, generator: torch.Generator) -> list[int]:
        """Start an epoch, and return the number of samples in each batch.

        A last batch of a single sample is left out, since BatchNorm cannot be trained on it.
        """
        lengths = batch_lengths(samples, self._size, self._least)
        order = torch.zeros(len(lengths), max(self._size, *lengths, 0), dtype=torch.int64)
        drawn = torch.split(torch.randperm(samples, generator=generator), lengths)
        for row, batch in zip(order, drawn, strict=True):
            row[: len(batch)] = batch
        self._inputs.put("order", order)
        self._next.zero_()
        return [length for length in lengths if length > 1]

    def next(self, length: int) -> Tensor:
        """Return the next batch's indices, int64 of shape (length,); a captured step may do so."""
        index: Tensor = self._inputs["order"].index_select(0, self._next)[0, :length]
        self._next += 1
        return index


class MeanLoss:
    """Sum of a loss over batches, which stays on the device, and its mean."""

    def __init__(self, device: torch.device) -> None:
        self._total = torch.zeros((), device=device)

    def begin(self) -> None:
        """Reset the sum to 0."""
        self._total.zero_()

    def add(self, loss: Tensor) -> None:
        """Add the loss of a batch, a scalar, to the sum; a captured step may call this."""
        self._total += loss.detach()

    def mean(self, steps: int) -> float | None:
        """Return the sum divided by a number of batches; None for 0."""
        return float(self._total) / steps if steps else None


_streams: dict[int, list[torch.cuda.Stream]] = {}


def train_side_by_side(trainings: Sequence[Training[T]], device: torch.device) -> list[T]:
    """Run the training of several clients, on a GPU in turns; return their results in order."""
    if device.type != "cuda":
        return [_run_to_end(training) for training in trainings]
    here = torch.cuda.current_stream(device)
    streams = _streams.setdefault(here.device_index, [])
    while len(streams) < len(trainings):
        streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call] # PyTorch has no types
    for stream in streams:
        stream.wait_stream(here)
    results: dict[int, T] = {}
    try:
        while len(results) < len(trainings):
            for place, training in enumerate(trainings):
                if place not in results:
                    with torch.cuda.stream(streams[place]):
                        try:
                            next(training)
                        except StopIteration as end:
                            results[place] = end.value
    finally:  # also if a training fails: memory that its stream still writes is used again
        for stream in streams:
            here.wait_stream(stream)
    return [results[place] for place in range(len(trainings))]


def _run_to_end(training: Training[T]) -> T:
    while True:
        try:
            next(training)
        except StopIteration as end:
            result: T = end.value
            return result
