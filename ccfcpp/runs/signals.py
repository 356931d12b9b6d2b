"""The signals by which a user stops a command: Ctrl-C and SIGTERM."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object] | int) -> Iterator[None]:
    """Handle SIGINT (Ctrl-C) and SIGTERM by ``handler`` within the context."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
