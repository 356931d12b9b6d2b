"""Stopping a long run without losing its work."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def graceful_interruption(announce: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C (or SIGTERM) into a request to stop after the round that is running.

    A second one stops at once; checkpoints appear whole, so at most one round is lost.

    Args:
        announce: Called when the request comes.

    Yields:
        A function that says whether a stop was asked for.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        announce()

    previous = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
