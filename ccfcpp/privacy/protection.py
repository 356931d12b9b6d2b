"""What lies between the clients and the server of a run, as its configuration has it."""

from collections.abc import Mapping, Sequence
from typing import Any

from ccfcpp.core.errors import UsageError
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Task
from ccfcpp.engine.transport import Transport
from ccfcpp.privacy.addition import addition_of
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.fixed_point import FixedPoint
from ccfcpp.privacy.summation import SecureSum
from ccfcpp.privacy.summing import Summing


class Protection:
    """Secure sums for a system, if it can use them.

    Args:
        config: What is asked for.
        system: The system's name.
        exchanges: All that its clients can be asked for, by name.
        clients: How many are connected.

    Raises:
        UsageError: What is asked for does not fit the system or the clients.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        system: str,
        exchanges: Mapping[str, Exchange[Any, Any]],
        clients: int,
    ) -> None:
        self.config = config
        self.exchanges = exchanges
        self.form = FixedPoint(config.bits, config.behind_the_point)
        self._check_adds_up(system)
        if clients < 2:
            raise UsageError(
                f"privacy.secure_sums with {clients} client: a sum of one is its summand; give two "
                "clients or more"
            )
        if config.threshold is not None and config.threshold > clients:
            raise UsageError(
                f"privacy.threshold = {config.threshold} is more than the {clients} connected "
                f"clients: give at most {clients}"
            )

    def _check_adds_up(self, system: str) -> None:
        for name, exchange in self.exchanges.items():
            if exchange.travels and addition_of(exchange) is None:
                raise UsageError(
                    f"privacy.secure_sums: of {system}'s exchange {name!r} the server needs each "
                    "client's part, not the sum; docs/trust.md lists what has sums"
                )

    def between(self, inner: Transport) -> Transport:
        """The transport of the loop, from that of the clients."""
        return Summing(inner, self.exchanges, self._sum)

    def _sum(self, task: Task, members: Sequence[Member]) -> SecureSum:
        return SecureSum(task, members, self.form, self.config.threshold)

    def describe(self) -> dict[str, object]:
        """What a summary says of it."""
        return {
            "secure_sums": True,
            "threshold": self.config.threshold or "two thirds and one",
            "bits": self.form.bits,
            "fraction_bits": self.form.fraction,
        }
