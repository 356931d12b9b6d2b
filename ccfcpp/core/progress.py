"""Progress within a round, which long computations report and a display shows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Lock


class RoundProgress:
    """Progress within the current round.

    Args:
        samples: Number of images of all clients together.
        moved: Called after each change.

    Attributes:
        round: Number of the round.
        share: Completed share of the round, from 0 to 1.
        counts_images: Whether images have been counted.
    """

    def __init__(self, samples: int, moved: Callable[[], None]) -> None:
        self.samples = samples
        self.moved = moved
        self.round = 0
        self.share = 0.0
        self.counts_images = False
        self._shown = 0
        self._lock = Lock()

    def begin(self, number: int) -> None:
        """Start a round."""
        self.round, self.share, self._shown = number, 0.0, 0

    def images(self, count: int, epochs: int) -> None:
        """Count images shown to models; each image is shown ``epochs`` times in a round."""
        with self._lock:  # Clients may train in several threads.
            self._shown += count
            self.counts_images = True
            self._reach(self._shown / (epochs * self.samples))

    def exchanges(self, done: int, of: int) -> None:
        """Set the number of the round's exchanges that are done."""
        # Images are more accurate where they are counted, since training takes the longest.
        if self._shown == 0:
            self._reach(done / of)

    def _reach(self, share: float) -> None:
        self.share = min(1.0, share)
        self.moved()


_current: ContextVar[RoundProgress | None] = ContextVar("pace", default=None)


@contextmanager
def report_progress_to(pace: RoundProgress) -> Iterator[None]:
    """Send the progress of the work in this block to ``pace``."""
    token = _current.set(pace)
    try:
        yield
    finally:
        _current.reset(token)


def report_round(number: int) -> None:
    """Report that a round starts."""
    if pace := _current.get():
        pace.begin(number)


def report_exchanges(done: int, of: int) -> None:
    """Report how many of the round's exchanges are done."""
    if pace := _current.get():
        pace.exchanges(done, of)


class CutShortError(Exception):
    """The work was stopped from another thread."""


_stop: ContextVar[Event | None] = ContextVar("stop", default=None)


@contextmanager
def stoppable(stop: Event) -> Iterator[None]:
    """Stop the work in this block, once the event is set, when it next reports progress."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def report_images(count: int, epochs: int) -> None:
    """Report images that were shown to models; see ``RoundProgress.images``.

    Raises:
        CutShortError: The work is in a ``stoppable`` block, and its event is set.
    """
    if (stop := _stop.get()) and stop.is_set():
        raise CutShortError
    if pace := _current.get():
        pace.images(count, epochs)


Watch = Callable[[str, int, int, float], None]
"""Called with an encoder, the samples that are embedded, all of them, and the seconds so far."""
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watch_embedding(watch: Watch) -> None:
    """Report the embedding of samples from now on, in this context."""
    _watch.set(watch)


def report_embedded(encoder: str, done: int, of: int, seconds: float) -> None:
    """Report samples that an encoder has turned into vectors."""
    if watch := _watch.get():
        watch(encoder, done, of, seconds)
