"""What a client was asked for and what it has sent, in words for its owner."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ccfcpp.core.units import bytes_in_words
from ccfcpp.deployment.client.audit import Entry
from ccfcpp.deployment.client.spending import Spending
from ccfcpp.deployment.link.messages import printable

DELTA = 1e-5
"""δ of the ε that is shown."""

Facts = dict[str, str]


def by_run(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the entries of a log by their runs, the first run first."""
    runs: dict[str, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    return list(runs.values())


def run_facts(entries: Sequence[Entry], spending: Spending) -> Facts:
    """Say what a run was, and what was sent in it."""
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


def reasons(entries: Sequence[Entry]) -> list[str]:
    """Return why requests were refused, each reason once."""
    found = (entry.reason or entry.status for entry in entries if entry.status != "done")
    return list(dict.fromkeys(found))


@dataclass
class Tally:
    """Work of a client in a round, for a line when the round is over."""

    of: tuple[str, int] = "", -1
    names: list[str] = field(default_factory=list)
    seconds: float = 0.0
    sent: int = 0

    def line(self) -> str:
        """Return the round's exchanges, seconds and bytes as one line."""
        count = len(self.names)
        what = printable(self.names[0]) if count == 1 else f"{count} exchanges"
        sent = bytes_in_words(self.sent)
        return f"round {self.of[1] + 1}, {what}: {self.seconds:.1f} s, {sent} sent"
