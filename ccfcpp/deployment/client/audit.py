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
"""δ for which ε is shown."""


def is_state_folder(folder: Path) -> bool:
    """Return whether a client keeps its state in a folder: whether the folder has a log."""
    return (folder / FILE).is_file()


@dataclass(frozen=True)
class AuditEntry:
    """A request from the server and the client's answer, as one entry of the log.

    Attributes:
        server: Host and port of the server.
        run: Token (random identifier) of the run.
        method: Name of the clustering system or classification method.
        kinds: Kinds of data that clients send in the run.
        asked: Name of the exchange; ``hello``: facts on the client's data, before a run.
        round: Number of the round, from 0.
        status: ``done``, or why nothing was sent, as in ``Response``.
        reason: Reason in words why nothing was sent; empty if there is none.
        bytes: Number of bytes sent, without the header.
        privacy: Largest ε of the run, as the server states it; None without differential privacy.
        secure_sums: Whether the server learns only sums over clients.
        own_noise: Whether the clients, not the server, add the noise of differential privacy.
        time: Time of the answer in UTC, as ISO 8601.
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
    """The log file of a client, with one ``AuditEntry`` per line, as JSON.

    Args:
        folder: Folder of the client's state.

    Attributes:
        damaged: A message about each line that could not be read, for example after a full disk.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self.damaged: list[str] = []

    def add(self, entry: AuditEntry) -> None:
        """Append an entry to the file."""
        append_line(self._path, json.dumps(asdict(entry)))

    def read(self) -> Iterator[AuditEntry]:
        """Yield the entries, oldest first, and add a message to ``damaged`` per unreadable line.

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
                    fields = json.loads(line)
                    yield AuditEntry(**{**fields, "kinds": tuple(fields["kinds"])})
                except (ValueError, TypeError, KeyError):
                    self.damaged.append(
                        f"line {number} of {self._path} is damaged, as by a crash or a full disk: "
                        "what it said is not shown"
                    )
        if 0 < number == len(self.damaged):
            raise UsageError(self.damaged[0])


def group_by_run(entries: Sequence[AuditEntry]) -> list[list[AuditEntry]]:
    """Group log entries by run, and return a list of entries per run, the oldest run first."""
    runs: dict[str, list[AuditEntry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    return list(runs.values())


def run_facts(entries: Sequence[AuditEntry], spending: Spending) -> dict[str, str]:
    """Return a summary of one run, as texts by name, from its log entries and the spent privacy."""
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


def refusal_reasons(entries: Sequence[AuditEntry]) -> list[str]:
    """Return the reasons why requests in the log were refused, each reason once."""
    given = (entry.reason or entry.status for entry in entries if entry.status != "done")
    return list(dict.fromkeys(given))
