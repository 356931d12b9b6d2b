"""Terms of a secure sum, on which server and clients agree before it begins."""

from dataclasses import dataclass
from functools import lru_cache

from ccfcpp.engine.exchange import RefusedUpdateError, Task
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.sums.fixed_point import FixedPoint

NEGLIGIBLE = 2.0**-40
"""Largest probability that random holders of shares include more colluders than is assumed."""
_ALL_HOLD = 100
"""Largest number of clients with which each client holds shares of all others."""
_ASSUMED = 10
"""One client in this many may collude with the server, and another one may be lost."""


class BelowThresholdError(RefusedUpdateError):
    """Error if too few clients are left for a secure sum, which then reveals nothing."""


@dataclass(frozen=True)
class Terms:
    """Terms of a secure sum, which server and clients know before it begins.

    Attributes:
        purpose: Name of this sum, to which keys, masks and signatures are bound.
        threshold: Number of clients needed in every stage: more than half of those asked.
        form: Fixed-point format in which numbers are sent.
        asked: Number of clients that were asked, for which a sum must not overflow.
        holders: k, the number of clients that hold shares of a client's secrets, including itself.
    """

    purpose: bytes
    threshold: int
    form: FixedPoint
    asked: int
    holders: int

    def __post_init__(self) -> None:
        if self.threshold < 2:
            raise ValueError(f"a sum of {self.threshold} clients hides nothing")

    @property
    def quorum(self) -> int:
        """Number of shares that recover a secret: ⌈threshold · holders / asked⌉."""
        return -(-self.threshold * self.holders // self.asked)

    def honest(self, colluders: int) -> int:
        """Return the fewest honest clients whose sum a dishonest server with colluders may learn.

        An honest holder reveals its share of one of a client's two secrets, and a colluder its
        shares of both. So the server learns both secrets of a client only if 2 · quorum <= holders
        + colluders among the holders.

        Args:
            colluders: Number of other clients that tell the server all they know.

        Returns:
            0 if the server could learn a single client's numbers.
        """
        worst = most_drawn(colluders, self.asked - 1, self.holders - 1)
        return self.quorum - worst if 2 * self.quorum > self.holders + worst else 0

    def check(self, there: int, stage: str) -> None:
        """Raise ``BelowThresholdError`` if ``there``, the clients left, are below the threshold."""
        self._check(there, self.threshold, "clients", stage)

    def check_holders(self, there: int, stage: str) -> None:
        """Raise ``BelowThresholdError`` if ``there``, the holders left, are below the quorum."""
        self._check(there, self.quorum, f"of {self.holders} holders of shares", stage)

    def _check(self, there: int, needed: int, whose: str, stage: str) -> None:
        if there < needed:
            raise BelowThresholdError(
                f"secure sum: {there} {whose} at the stage of {stage}, and it needs {needed} "
                "(privacy.threshold)"
            )


def terms_of(config: PrivacyConfig, task: Task, asked: int) -> Terms:
    """Return the terms of a task's secure sum over ``asked`` clients; both sides compute them."""
    wanted = 2 * asked // 3 + 1 if config.threshold is None else config.threshold
    # With half of the clients or fewer, the server could obtain both secrets of a client.
    threshold = max(2, asked // 2 + 1, wanted)
    purpose = f"{task.system}/{task.round}/{task.index}"
    if config.own_noise:
        # Clients share masks only under equal terms.
        purpose += "/noise from the seed" if config.reproducible_noise else "/noise of each client"
    form = FixedPoint(config.bits, config.behind_the_point)
    holders = min(asked, config.holders or fewest_holders(asked, threshold))
    return Terms(purpose.encode(), threshold, form, asked, holders)


@lru_cache(maxsize=256)
def fewest_holders(asked: int, threshold: int) -> int:
    """Return the default number of clients that hold shares of a client's secrets.

    Up to a hundred clients, these are all. For more clients, it is the smallest number with which,
    except with a negligible probability, the sum can be computed and no client's part can be known
    if a tenth of the clients collude with the server and another tenth is lost. It grows with the
    logarithm of the number of clients.
    """
    few = range(_ALL_HOLD, asked)
    return next((holders for holders in few if _suffices(asked, threshold, holders)), asked)


def _suffices(asked: int, threshold: int, holders: int) -> bool:
    quorum = -(-threshold * holders // asked)
    worst = most_drawn(asked // _ASSUMED, asked - 1, holders - 1)
    return 2 * quorum > holders + worst and holders - quorum >= worst


@lru_cache(maxsize=4096)
def most_drawn(marked: int, others: int, drawn: int) -> int:
    """Return an upper bound on the number of marked items in a random sample.

    Args:
        marked: Number of marked items.
        others: Number of all items, marked or not.
        drawn: Size of the sample, drawn without replacement.

    Returns:
        A number that is exceeded with a probability of at most ``NEGLIGIBLE``.
    """
    if drawn >= others:
        return min(marked, others)
    # Imported where it is needed: it is slow to import.
    from scipy.stats import hypergeom

    return int(hypergeom.isf(NEGLIGIBLE, others, min(marked, others), drawn))
