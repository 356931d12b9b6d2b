"""Progress within a round, which long computations report and a display shows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Lock


class RoundProgress:
    """Progress of the current round, from 0 to 1.

    Args:
        samples: Number of images of all clients together.
        moved: Called after each change of the progress.

    Attributes:
        round: Number of the round.
        share: Completed share of the round, from 0 to 1.
        counts_images: Whether the progress is measured by images that training has used.
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
        """Start round ``number``, with a progress of 0."""
        self.round, self.share, self._shown = number, 0.0, 0

    def images(self, count: int, epochs: int) -> None:
        """Add ``count`` images used in training; a round uses each image ``epochs`` times."""
        with self._lock:  # Clients may train in several threads.
            self._shown += count
            self.counts_images = True
            self._reach(self._shown / (epochs * self.samples))

    def exchanges(self, done: int, of: int) -> None:
        """Set the progress to ``done`` of ``of`` exchanges, unless images are counted."""
        # Images are more accurate where they are counted, since training takes the longest.
        if self._shown == 0:
            self._reach(done / of)

    def _reach(self, share: float) -> None:
        self.share = min(1.0, share)
        self.moved()


_current: ContextVar[RoundProgress | None] = ContextVar("pace", default=None)


@contextmanager
def report_progress_to(progress: RoundProgress) -> Iterator[None]:
    """Record the progress of the work in this block in ``progress``."""
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)


def report_round(number: int) -> None:
    """Report the start of round ``number`` to the current ``RoundProgress``, if any."""
    if progress := _current.get():
        progress.begin(number)


def report_exchanges(done: int, of: int) -> None:
    """Report to the current ``RoundProgress`` that ``done`` of ``of`` exchanges are complete."""
    if progress := _current.get():
        progress.exchanges(done, of)


class CutShortError(Exception):
    """The work in a ``stoppable`` block was stopped from another thread."""


_stop: ContextVar[Event | None] = ContextVar("stop", default=None)


@contextmanager
def stoppable(stop: Event) -> Iterator[None]:
    """Let an event stop the work in this block: once set, the next ``report_images`` raises."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def report_images(count: int, epochs: int) -> None:
    """Report that training has used ``count`` images; see ``RoundProgress.images``.

    Raises:
        CutShortError: The work is in a ``stoppable`` block, and its event is set.
    """
    if (stop := _stop.get()) and stop.is_set():
        raise CutShortError
    if progress := _current.get():
        progress.images(count, epochs)


Watch = Callable[[str, int, int, float], None]
"""Called with an encoder's name, the samples embedded so far, all samples, and the seconds."""
_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)


def watch_embedding(watch: Watch) -> None:
    """Set the function that ``report_embedded`` calls, in this context (``contextvars``)."""
    _watch.set(watch)


def report_embedded(encoder: str, done: int, of: int, seconds: float) -> None:
    """Report that an encoder has embedded ``done`` of ``of`` samples, after ``seconds``."""
    if watch := _watch.get():
        watch(encoder, done, of, seconds)
