"""Flower's clock for a server, without the jumps of the machine's clock.

Flower measures by the time of day how long a client has been silent and how old a signature is. If
the clock is set, or if this process is stopped for a while, all clients would count as offline at
once, or an offline one as online for hours. So Flower gets another clock. It counts the time
in which this process has run: it ignores the time of day, and a pause counts little.
"""

import datetime
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from ccfcpp.deployment.server.flower_internals import date

BEAT = 5.0
"""Seconds within which somebody looks at the clock."""
_MOST = 2 * BEAT
"""Seconds that a longer pause counts: less than a client may be silent."""


class SteadyClock:
    """Clock that starts at the time of day and then counts only the time that this process runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._time = datetime.datetime.now(datetime.UTC)
        self._looked = time.monotonic()

    def now(self, tz: datetime.tzinfo | None = None) -> datetime.datetime:
        """Return the time."""
        with self._lock:
            before, self._looked = self._looked, time.monotonic()
            self._time += datetime.timedelta(seconds=min(self._looked - before, _MOST))
            return self._time.astimezone(tz)


@contextmanager
def steady_clock() -> Iterator[None]:
    """Replace Flower's clock by a steady one within the context."""
    flower = vars(date)
    before = flower["datetime"]
    # All of Flower's modules have the function ``now`` of this one, which looks here.
    flower["datetime"] = SimpleNamespace(datetime=SteadyClock(), UTC=datetime.UTC)
    try:
        yield
    finally:
        flower["datetime"] = before
