"""Privacy protection of a run, made from its settings."""

import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path

from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.engine.exchange import AnyClientWork, AnyExchange, RefusedUpdateError, Task
from ccfcpp.engine.update_format import Sum
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.privacy.noise.differential_privacy import ImageLevel, Level
from ccfcpp.privacy.sums.aggregation import require_sums
from ccfcpp.privacy.sums.agreement import terms_of
from ccfcpp.privacy.sums.client import wrap_works
from ccfcpp.privacy.sums.distributed_noise import min_honest_clients
from ccfcpp.privacy.sums.stage import Summing


class Protection:
    """Secure sums and differential privacy of a run.

    Attributes:
        stage: Adds up the clients' updates, between the transport and the loop over rounds.

    Raises:
        UsageError: The settings do not fit the system or the clients.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        system: str,
        exchanges: Iterable[AnyExchange],
        clients: int,
        mechanism: Level | None = None,
    ) -> None:
        check_fits(config, system, exchanges)
        if config.secure_sums:
            _check_threshold(config, clients)
        if mechanism is not None:
            # Clients that add noise must know how much.
            config = config.model_copy(update={"noise": mechanism.budget.noise})
        self.config = config
        self.clients = clients
        self.mechanism = mechanism
        self.stage = Summing(config, mechanism)

    @property
    def merges(self) -> bool:
        """Whether clients in one process may send a joint sum: at level "image", without masks."""
        return not self.config.secure_sums and isinstance(self.mechanism, ImageLevel)

    def works(self, works: Mapping[str, AnyClientWork]) -> dict[str, AnyClientWork]:
        """Wrap the clients' work, by name of the exchange, so that it sends only what is summed."""
        return wrap_works(works, self.config, self.clients)

    def open(self, path: Path, goes_on: bool) -> None:
        """Load what a run has spent of its privacy budget, if it has one, from its ledger file.

        Raises ``UsageError`` if the ledger is damaged, or missing though the run is resumed
        (``goes_on``).
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
        """Return the lines on its protection that a run prints before its first round."""
        lines = []
        if self.config.secure_sums:
            lines.append("secure sums: the server learns sums over clients, and no client's part")
        if self.mechanism is not None:
            lines.append(self.mechanism.header())
        return lines

    def describe(self) -> dict[str, object]:
        """Return the facts on privacy for the run's ``summary.json``."""
        facts: dict[str, object] = {"secure_sums": self.config.secure_sums}
        if self.config.secure_sums:
            facts |= {
                "threshold": self.config.threshold,
                "bits": self.config.bits,
                "fraction_bits": self.config.behind_the_point,
            }
        return facts | (self.mechanism.describe() if self.mechanism else {})


def check_fits(config: PrivacyConfig, system: str, exchanges: Iterable[AnyExchange]) -> None:
    """Raise ``UsageError`` if the server needs more than sums, or ``clips`` has unknown names."""
    level = KeyValue("privacy.level", config.level)
    asked = KeyValue("privacy.secure_sums") if config.secure_sums else level
    known, single = set[str](), set[str]()
    for exchange in exchanges:
        if exchange.travels:
            require_sums(asked, system, exchange)
            known |= exchange.parts.keys()
            single |= {n for n, p in exchange.parts.items() if isinstance(p, Sum) and p.each}
    for name in config.clips:
        before, _, one = name.partition("/")
        # Only the tensors of some sums have bounds of their own.
        if before not in (single if one else known):
            raise UsageError(
                f"privacy.clips has a bound of {name!r}, and {system} sends no such part: it "
                f"sends {', '.join(sorted(known))}"
            )


def _check_threshold(config: PrivacyConfig, clients: int) -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError(
            KeyValue("privacy.secure_sums"),
            " needs cryptography, which is not installed: pip install '.[privacy]'",
        )
    if clients < 2:
        raise UsageError(
            KeyValue("privacy.secure_sums"),
            f" with {clients} client: a sum of one is its summand; give two clients or more",
        )
    if config.threshold is not None and config.threshold > clients:
        raise UsageError(
            KeyValue("privacy.threshold", config.threshold),
            f" is more than the {clients} connected clients: give at most {clients}",
        )
    if config.own_noise:
        try:
            min_honest_clients(terms_of(config, Task("", "", 0, 0), clients), config.colluders)
        except RefusedUpdateError as refusal:
            raise UsageError(str(refusal)) from refusal
