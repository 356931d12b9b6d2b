"""The log of requests to a client and of its answers, for its owner."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import append_line
from ccfcpp.core.units import bytes_in_words
from ccfcpp.deployment.client.privacy_spent import Spending

FILE = "audit.jsonl"
DELTA = 1e-5
"""δ of the ε that is shown."""

Facts = dict[str, str]


def is_state(folder: Path) -> bool:
    """Return whether a folder is that of a client's state."""
    return (folder / FILE).is_file()


@dataclass(frozen=True)
class AuditEntry:
    """A request of the server, and its answer.

    Attributes:
        server: Host and port of the gate.
        run: Token of the run.
        method: The system that runs.
        kinds: Kinds of data that the run may send.
        asked: ``hello``, or the name of the exchange.
        round: Number of the round, from 0.
        status: ``done``, or why nothing was sent.
        reason: The reason in words.
        bytes: Number of bytes sent, without the header.
        privacy: Largest ε of the run, by its description; None without differential privacy.
        secure_sums: Whether the server learns sums over clients alone.
        own_noise: Whether the clients add the noise.
        time: Time when the answer was ready, in UTC.
    """

    server: str
    run: str
    method: str
    kinds: tuple[str, ...]
    asked: str
    round: int
    status: str
    reason: str = ""
    bytes: int = 0
    privacy: float | None = None
    secure_sums: bool = False
    own_noise: bool = False
    time: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class AuditLog:
    """The log file of a client: one ``AuditEntry`` per line, as JSON; entries are only appended.

    Attributes:
        damaged: A message about each line that could not be read, such as one that a full disk cut
            short.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.damaged: list[str] = []

    def add(self, entry: AuditEntry) -> None:
        """Append an entry."""
        append_line(self._path, json.dumps(asdict(entry)))

    def read(self) -> Iterator[AuditEntry]:
        """Yield the entries in order of time; add a message per unreadable line to ``damaged``.

        Raises:
            UsageError: There is no log, or none of its lines can be read.
        """
        if not self._path.is_file():
            raise UsageError(
                f"{self._path.parent} holds no log: give the folder of a client, as KEY.state"
            )
        number = 0
        with self._path.open(errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    found = json.loads(line)
                    yield AuditEntry(**{**found, "kinds": tuple(found["kinds"])})
                except (ValueError, TypeError, KeyError):
                    self.damaged.append(
                        f"line {number} of {self._path} is damaged, as by a crash or a full disk: "
                        "what it said is not shown"
                    )
        if 0 < number == len(self.damaged):
            raise UsageError(self.damaged[0])


def by_run(entries: Sequence[AuditEntry]) -> list[list[AuditEntry]]:
    """Return the entries of a log by their runs, the first run first."""
    runs: dict[str, list[AuditEntry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    return list(runs.values())


def run_facts(entries: Sequence[AuditEntry], spending: Spending) -> Facts:
    """Describe a run, and what was sent in it."""
    first, last = entries[0], entries[-1]
    refused = [entry for entry in entries if entry.status != "done"]
    noise = "none"
    if first.privacy is not None:
        spent = spending.epsilon(DELTA, first.run)
        noise = f"ε = {spent:.3g} spent, of {first.privacy:g} that the server says"
        noise += ", with noise of the clients" if first.own_noise else ""
    return {
        "server": first.server,
        "from": first.time,
        "to": last.time,
        "may send": ", ".join(first.kinds),
        "secure sums": "yes" if first.secure_sums else "no",
        "differential privacy": noise,
        "requests": f"{len(entries):,}, {len(refused):,} of them refused",
        "sent": bytes_in_words(sum(entry.bytes for entry in entries)),
    }


def reasons(entries: Sequence[AuditEntry]) -> list[str]:
    """Return the reasons of refused requests, each once."""
    found = (entry.reason or entry.status for entry in entries if entry.status != "done")
    return list(dict.fromkeys(found))
