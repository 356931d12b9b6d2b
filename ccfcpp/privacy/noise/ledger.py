"""What a run has published so far, in a file that only grows."""

import json
import os
from collections import Counter
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.privacy.noise.accountant import Release


class Ledger:
    """The releases of a run, each written down before it is made.

    A round that is run again after an interruption publishes anew, so it counts again: unlike the
    log, the ledger never forgets.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Counter[Release]:
        """All releases so far.

        Raises:
            UsageError: The file is damaged.
        """
        found: Counter[Release] = Counter()
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            try:
                found.update(
                    Release(float(q), int(sums)) for q, sums in json.loads(line)["releases"]
                )
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{self.path} is damaged, so that the budget is not known: start again with "
                    "another --out"
                ) from error
        return found

    def add(self, number: int, releases: list[Release]) -> None:
        """Write a round down; it outlasts a crash."""
        entry = {"round": number, "releases": [[each.sampled, each.sums] for each in releases]}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
