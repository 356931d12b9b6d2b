"""How much of a round is done: long work tells, and a display follows.

To tell costs next to nothing where nobody follows.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Pace:
    """How much of the present round is done.

    Args:
        samples: Images of all clients together.
        moved: Called after each change.

    Attributes:
        round: The round's number, from 0.
        share: What is done of it, from 0 to 1.
    """

    def __init__(self, samples: int, moved: Callable[[], None]) -> None:
        self.samples = samples
        self.moved = moved
        self.round = 0
        self.share = 0.0
        self._shown = 0

    def begin(self, number: int) -> None:
        """A round begins."""
        self.round, self.share, self._shown = number, 0.0, 0

    def images(self, count: int, epochs: int) -> None:
        """Images were shown to models; in a round each image is shown ``epochs`` times."""
        self._shown += count
        self._reach(self._shown / (epochs * self.samples))

    def exchanges(self, done: int, of: int) -> None:
        """So many of the round's exchanges are over."""
        # Images say more, where they are counted: a training takes longer than all else.
        if self._shown == 0:
            self._reach(done / of)

    def _reach(self, share: float) -> None:
        self.share = min(1.0, share)
        self.moved()


_current: ContextVar[Pace | None] = ContextVar("pace", default=None)


@contextmanager
def followed(pace: Pace) -> Iterator[None]:
    """Have ``pace`` told of all work in this block."""
    token = _current.set(pace)
    try:
        yield
    finally:
        _current.reset(token)


def tell_round(number: int) -> None:
    """Tell that a round begins."""
    if pace := _current.get():
        pace.begin(number)


def tell_exchanges(done: int, of: int) -> None:
    """Tell how many of the round's exchanges are over."""
    if pace := _current.get():
        pace.exchanges(done, of)


def tell_images(count: int, epochs: int) -> None:
    """Tell of images that were shown; see ``Pace``."""
    if pace := _current.get():
        pace.images(count, epochs)
