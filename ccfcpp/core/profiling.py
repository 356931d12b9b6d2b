"""Measurement of the time that sections (named blocks) of a run's code take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch


@dataclass
class Profile:
    """Seconds and calls of each section (named block of code), without the sections inside it."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _inner: list[float] = field(default_factory=list)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time of the block to the section ``name``."""
        self._inner.append(0.0)
        began = _now()
        try:
            yield
        finally:
            whole = _now() - began
            own = whole - self._inner.pop()
            if self._inner:
                self._inner[-1] += whole
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            self.calls[name] = self.calls.get(name, 0) + 1


_OUTSIDE = "other"

_current: ContextVar[Profile | None] = ContextVar("profile", default=None)


@contextmanager
def section(name: str) -> Iterator[None]:
    """Measure the time of this block under a name; does nothing outside of ``profiling``."""
    profile = _current.get()
    if profile is None:
        yield
    else:
        with profile.measure(name):
            yield


def add_profile(other: Profile) -> None:
    """Add the profile of another thread to this thread's; their seconds overlap.

    The other thread's time outside of sections is left out: this thread waits meanwhile.
    """
    if profile := _current.get():
        for name, seconds in other.seconds.items():
            if name == _OUTSIDE:
                continue
            profile.seconds[name] = profile.seconds.get(name, 0.0) + seconds
            profile.calls[name] = profile.calls.get(name, 0) + other.calls[name]


@contextmanager
def profiling() -> Iterator[Profile]:
    """Measure the sections of this block; the time outside of sections is under ``other``."""
    profile = Profile()
    token = _current.set(profile)
    try:
        with profile.measure(_OUTSIDE):
            yield profile
    finally:
        _current.reset(token)


def _now() -> float:
    # An accelerator continues after a call has returned.
    if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()
    return time.perf_counter()
