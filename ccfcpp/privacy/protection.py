"""What lies between the clients and the server of a run, as its configuration has it."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ccfcpp.core.errors import UsageError
from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import Exchange, Task
from ccfcpp.engine.transport import Transport
from ccfcpp.privacy.addition import addition_of
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.dp_levels import ClientLevel, ImageLevel
from ccfcpp.privacy.fixed_point import FixedPoint
from ccfcpp.privacy.summation import OpenSum, Summation
from ccfcpp.privacy.summing import Summing


class Protection:
    """Secure sums and differential privacy for a system, if it can use them.

    Args:
        config: What is asked for.
        system: The system's name.
        exchanges: All that its clients can be asked for, by name.
        clients: How many are connected.
        mechanism: Differential privacy, where it is asked for.

    Raises:
        UsageError: What is asked for does not fit the system or the clients.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        system: str,
        exchanges: Mapping[str, Exchange[Any, Any]],
        clients: int,
        mechanism: ClientLevel | ImageLevel | None = None,
    ) -> None:
        self.config = config
        self.exchanges = exchanges
        self.mechanism = mechanism
        self.form = FixedPoint(config.bits, config.behind_the_point)
        check_adds_up(config, system, exchanges)
        if config.secure_sums:
            _check_threshold(config, clients)

    @property
    def merges(self) -> bool:
        """Whether clients of one process may send one sum: images, and not clients, are bounded."""
        return not self.config.secure_sums and isinstance(self.mechanism, ImageLevel)

    def between(self, inner: Transport) -> Transport:
        """The transport of the loop, from that of the clients."""
        return Summing(inner, self.exchanges, self._sum, self.mechanism)

    def _sum(self, task: Task, members: Sequence[Member]) -> Summation:
        if not self.config.secure_sums:
            return OpenSum()
        # Imported where it is needed: cryptography is an extra.
        from ccfcpp.privacy.secure_sums_here import SecureSum

        return SecureSum(task, members, self.form, self.config.threshold)

    def open(self, path: Path, goes_on: bool) -> None:
        """Go on with what a run's ledger says is spent, where there is a budget.

        Args:
            path: The ledger.
            goes_on: Whether rounds have been run before.

        Raises:
            UsageError: The ledger is damaged, or gone.
        """
        if self.mechanism is None:
            return
        if goes_on and not path.exists():
            raise UsageError(
                f"{path} is gone, so that what the run has spent of its budget is not known: start "
                "again with another --out"
            )
        self.mechanism.open(path)

    def header(self) -> list[str]:
        """What a run says before its first round, line by line."""
        lines = []
        if self.config.secure_sums:
            lines.append(
                "secure sums: the server learns sums over clients, and no client's part; a server "
                "that lies to its clients is not kept from it"
            )
        if self.mechanism is not None:
            lines.append(self.mechanism.header())
        return lines

    def describe(self) -> dict[str, object]:
        """What a summary says of it."""
        found: dict[str, object] = {"secure_sums": self.config.secure_sums}
        if self.config.secure_sums:
            found |= {
                "threshold": self.config.threshold,
                "bits": self.form.bits,
                "fraction_bits": self.form.fraction,
            }
        return found | (self.mechanism.describe() if self.mechanism else {})


def check_adds_up(
    config: PrivacyConfig, system: str, exchanges: Mapping[str, Exchange[Any, Any]]
) -> None:
    """Refuse a system of which the server needs each client's part.

    Raises:
        UsageError: Updates of one of its exchanges do not add up.
    """
    asked = "privacy.secure_sums" if config.secure_sums else f"privacy.level = {config.level}"
    for name, exchange in exchanges.items():
        if exchange.travels and addition_of(exchange) is None:
            raise UsageError(
                f"{asked}: in {system}'s exchange {name!r} the server needs each client's part, "
                "and not the sum; docs/trust.md lists what has sums"
            )


def _check_threshold(config: PrivacyConfig, clients: int) -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError(
            "privacy.secure_sums needs cryptography, which is not installed: pip install "
            "'ccfcpp[privacy]'"
        )
    if clients < 2:
        raise UsageError(
            f"privacy.secure_sums with {clients} client: a sum of one is its summand; give two "
            "clients or more"
        )
    if config.threshold is not None and config.threshold > clients:
        raise UsageError(
            f"privacy.threshold = {config.threshold} is more than the {clients} connected clients: "
            f"give at most {clients}"
        )
