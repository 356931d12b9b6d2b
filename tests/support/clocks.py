"""Clocks that jump. The file that ``CCFCPP_TEST_CLOCK`` names holds how far they are ahead."""

import datetime
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

FILE = "CCFCPP_TEST_CLOCK"
BESIDE = Path(__file__).parent / "clock"
"""What ``PYTHONPATH`` must name."""


def ahead() -> float:
    """How many seconds the clock is ahead; 0 where there is no file."""
    try:
        return float(Path(os.environ[FILE]).read_text() or 0)
    except OSError:
        return 0.0


def follow_time() -> None:
    """Let ``time.time`` follow the file."""
    true = time.time
    time.time = lambda: true() + ahead()


def follow_flower(seconds: Callable[[], float] = ahead) -> None:
    """Let Flower's clock, by which calls are signed and nodes expire, be ahead."""
    from flwr.supercore import date

    def now(tz: datetime.tzinfo) -> datetime.datetime:
        return datetime.datetime.now(tz) + datetime.timedelta(seconds=seconds())

    setattr(date, "datetime", SimpleNamespace(datetime=SimpleNamespace(now=now), UTC=datetime.UTC))  # noqa: B010
