"""A client's own random numbers, which no server can reproduce."""

import hashlib
import secrets
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import atomic_file
from ccfcpp.core.randomness import Randomness

_FILE, _BYTES = "secret", 32


class OwnDraws:
    """Source of a deployed client's batches and views, by a secret in the folder of its state.

    Anyone who knows a run's seed could tell which images are in which sum, and solve for each. A
    client's draws are the same whenever they are repeated, also after it was restarted.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE

    def of_run(self, run: str) -> Randomness:
        """Return the source of a run, different for each run."""
        return self._source(f"run {run}")

    @property
    def grouping(self) -> Randomness:
        """Random source, the same in all runs, that divides the images into groups for sums."""
        return self._source("groups")

    def _source(self, purpose: str) -> Randomness:
        digest = hashlib.blake2b(purpose.encode(), key=self._secret(), digest_size=32).digest()
        return Randomness(int.from_bytes(digest))

    def _secret(self) -> bytes:
        if not self._path.exists():
            with atomic_file(self._path) as temporary:
                temporary.chmod(0o600)
                temporary.write_bytes(secrets.token_bytes(_BYTES))
        content = self._path.read_bytes()
        if len(content) != _BYTES:
            raise UsageError(f"{self._path} is damaged: take it away, and draws begin anew")
        return content
