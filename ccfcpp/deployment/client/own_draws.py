"""Randomness of a client's own, from which no server can draw again."""

import hashlib
import os
import secrets
from pathlib import Path

from ccfcpp.core.randomness import Randomness

_FILE, _BYTES = "secret", 32


class OwnDraws:
    """Source of a deployed client's batches and views, by a secret in the folder of its state.

    Whoever knows a run's seed could tell which images are in which sum, and solve for each. What a
    client draws is the same whenever it is asked again, also after it was restarted.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE

    def of_run(self, run: str) -> Randomness:
        """Return the source of a run, which no two runs have in common."""
        return self._source(f"run {run}")

    @property
    def grouping(self) -> Randomness:
        """The source of the groups of images that enter sums together, the same in all runs."""
        return self._source("groups")

    def _source(self, purpose: str) -> Randomness:
        digest = hashlib.blake2b(purpose.encode(), key=self._secret(), digest_size=32).digest()
        return Randomness(int.from_bytes(digest))

    def _secret(self) -> bytes:
        if not self._path.exists():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=0o600)
            with os.fdopen(number, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
                file.flush()
                os.fsync(file.fileno())
        return self._path.read_bytes()
