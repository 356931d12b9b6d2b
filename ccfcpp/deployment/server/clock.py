"""A clock for Flower's server that does not jump.

Flower uses the machine's time of day to decide whether a client is offline or a signature is too
old. If that clock is changed, or this process is paused, all clients would count as offline at
once, or an offline one as online for hours. So Flower gets a clock that counts only the time for
which this process runs.
"""

import datetime
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from ccfcpp.deployment.server.flower_internals import date

BEAT = 5.0
"""Interval in seconds within which the clock must be read."""
_MOST = 2 * BEAT
"""Largest time in seconds that counts between two readings; less than makes a client offline."""


class SteadyClock:
    """Clock that starts at the time of day and then advances only while this process runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time = datetime.datetime.now(datetime.UTC)
        self._last_read = time.monotonic()

    def now(self, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        """Return the clock's time in a time zone, as ``datetime.datetime.now`` does."""
        with self._lock:
            before, self._last_read = self._last_read, time.monotonic()
            self._time += datetime.timedelta(seconds=min(self._last_read - before, _MOST))
            return self._time.astimezone(tz)


@contextmanager
def steady_clock() -> Iterator[None]:
    """Replace Flower's clock by a ``SteadyClock`` within the context."""
    flower = vars(date)
    before = flower["datetime"]
    # All of Flower's modules use the function ``now`` of this module, which reads this variable.
    flower["datetime"] = SimpleNamespace(datetime=SteadyClock(), UTC=datetime.UTC)
    try:
        yield
    finally:
        flower["datetime"] = before
