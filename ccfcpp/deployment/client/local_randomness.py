"""A client's own random numbers, which the server cannot reproduce."""

import hashlib
import secrets
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import atomic_file
from ccfcpp.core.randomness import Randomness

_FILE, _BYTES = "secret", 32


class LocalRandomness:
    """Random sources of a deployed client, seeded by a secret file in its state folder.

    A server that knew the seed of batches and augmentations would know which images are in which
    sum, and could solve for single images. The secret stays the same after a restart.

    Args:
        folder: Folder of the client's state.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE

    def for_run(self, run: str) -> Randomness:
        """Return the random source for a run, given its token; it differs between runs."""
        return self._source(f"run {run}")

    @property
    def grouping(self) -> Randomness:
        """Random source for the division of images into groups, which enter sums as a whole.

        It is the same in all runs: sums over different groups could reveal single images.
        """
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
