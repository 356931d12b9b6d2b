"""Pre-trained encoders, and a cache on disk of their vectors, by the content of samples."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import content_hash
from ccfcpp.core.progress import report_embedded
from ccfcpp.data.cache import cache_folder, read_entry, write_entry
from ccfcpp.data.decoding import UnreadableError

Vectors = NDArray[np.float32]

# Part of the folder's name: raise it when the same content is passed to encoders differently.
_VERSION = 1
_SECONDS_BETWEEN_SAVES = 60.0
"""Seconds between two saves of new vectors, so that an interruption loses little."""
_SHORT = 12
"""Number of digits of a content hash that are shown."""


@dataclass(frozen=True)
class Encoder:
    """Frozen pre-trained network that embeds an image or a text as a vector.

    Attributes:
        name: Its name, as the user gave it.
        hash: Content hash: SHA-256 of its weights and of the preprocessing of samples.
        size: Largest batch size.
        batch: Maps up to ``size`` samples to floats of shape `(samples, d)`. An image is uint8
            `(channels, height, width)`; a text is a string.
    """

    name: EncoderName
    hash: str
    size: int
    batch: Callable[[Sequence[Any]], NDArray[np.floating]]

    def __str__(self) -> str:
        return f"{self.name.called} ({self.hash[:_SHORT]})"

    def embed(
        self, keys: Sequence[str], get: Callable[[int], Any]
    ) -> tuple[Vectors, dict[int, str]]:
        """Embed samples; content that was embedded before gets its vector from the cache.

        New vectors are added to the cache, even if an error or Ctrl-C ends the work.

        Args:
            keys: Digest of each sample's content, its key in the cache.
            get: Returns a sample by its index.

        Returns:
            Vectors of the readable samples, float32 `(samples, d)`; and the reason why a sample
            could not be read, by its index.

        Raises:
            UsageError: The encoder cannot take the samples, or returns infinite values or NaN.
        """
        folder = cache_folder() / "embeddings" / f"{_VERSION}-{self.hash[:32]}"
        vectors, reasons = _read_cached(folder, keys), dict[int, str]()
        first: dict[str, int] = {}
        for i, key in enumerate(keys):
            if key not in vectors:
                first.setdefault(key, i)
        todo, stored = list(first.values()), set(vectors)
        began = since = time.monotonic()
        try:
            for start in range(0, len(todo), self.size):
                batch, samples = todo[start : start + self.size], []
                for i in batch:
                    try:
                        samples.append((keys[i], get(i)))
                    except (UnreadableError, MemoryError) as error:
                        reasons[i] = str(error) or "it needs too much memory"
                if samples:
                    rows = self._to_rows(self.batch([sample for _, sample in samples]))
                    vectors |= zip((key for key, _ in samples), rows, strict=True)
                report_embedded(str(self), start + len(batch), len(todo), time.monotonic() - began)
                if time.monotonic() - since > _SECONDS_BETWEEN_SAVES:
                    stored, since = _store(folder, vectors, stored), time.monotonic()
        finally:
            _store(folder, vectors, stored)
        bad = {keys[i]: why for i, why in reasons.items()}
        reasons = {i: bad[key] for i, key in enumerate(keys) if key in bad}
        readable = [vectors[key] for key in keys if key not in bad]
        return np.stack(readable) if readable else np.empty((0, 1), np.float32), reasons

    def _to_rows(self, vectors: NDArray[np.floating]) -> Vectors:
        # A network without its head may return feature maps of one pixel.
        shape = vectors.shape[1:]
        if math.prod(shape) != max(shape, default=0):
            raise UsageError(
                f"encoder {self.name.called} gives an array of shape {shape} for each sample, and "
                "no vector: give one that ends with pooling"
            )
        flat = vectors.reshape(len(vectors), -1)
        if not np.isfinite(flat).all():
            raise UsageError(
                f"encoder {self.name.called} gives numbers that are not finite: its weights are "
                "damaged, or of another network"
            )
        return flat.astype(np.float32)


def _read_cached(folder: Path, wanted: Iterable[str]) -> dict[str, Vectors]:
    """Return the vectors of those wanted keys that the folder has, by key."""
    left, vectors = set(wanted), dict[str, Vectors]()
    for entry in sorted(folder.glob("[!.]*")):
        arrays = read_entry(entry, ("keys", "vectors"), mapped=True)
        if arrays is None:
            continue
        row_of = {str(key): row for row, key in enumerate(arrays["keys"])}
        shared = left & row_of.keys()
        vectors |= {key: np.array(arrays["vectors"][row_of[key]]) for key in shared}
        left -= shared
    return vectors


def _store(folder: Path, vectors: Mapping[str, Vectors], stored: Iterable[str]) -> set[str]:
    """Store the vectors whose keys are not in ``stored``; return the keys of all ``vectors``."""
    new = [key for key in vectors if key not in stored]
    if new:
        arrays = {"keys": np.array(new), "vectors": np.stack([vectors[key] for key in new])}
        write_entry(folder / content_hash(new)[:32], arrays)
    return set(vectors)
