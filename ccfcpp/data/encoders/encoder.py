"""An encoder, and a cache on disk of its vectors, by the content of samples."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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

# Part of the folder's name: raise it when what an encoder is given of the same content changes.
_VERSION = 1
_KEPT_AFTER = 60.0
"""Seconds after which new vectors are saved, so that an interruption loses little."""
_SHORT = 12
"""Digits of a content hash that are shown."""


@dataclass(frozen=True)
class Encoder:
    """A frozen pre-trained network that embeds a picture or a text as a vector.

    Attributes:
        name: Its name.
        hash: Content hash: SHA-256 of its weights and of the preprocessing of samples.
        size: Batch size.
        batch: Maps up to ``size`` samples to floats of shape `(samples, d)`. A picture is uint8
            `(channels, height, width)`; a text is a string.
    """

    name: EncoderName
    hash: str
    size: int
    batch: Callable[[Sequence[Any]], NDArray[np.floating]]

    def __str__(self) -> str:
        return f"{self.name.called} ({self.hash[:_SHORT]})"

    def embedded(
        self, keys: Sequence[str], get: Callable[[int], Any]
    ) -> tuple[Vectors, dict[int, str]]:
        """Embed samples; vectors of content that was embedded before come from the cache.

        New vectors are added to the cache, even if an error or Ctrl-C ends the work.

        Args:
            keys: Digest of each sample's content.
            get: Returns a sample by its index.

        Returns:
            Vectors of the readable samples, float32 `(samples, d)`; and the reason why a sample
            could not be read, by its index.

        Raises:
            UsageError: The encoder cannot take the samples, or returns infinite values or NaN.
        """
        shelf = _Shelf(self.hash)
        found, reasons = shelf.read(keys), dict[int, str]()
        first: dict[str, int] = {}
        for i, key in enumerate(keys):
            if key not in found:
                first.setdefault(key, i)
        todo, kept = list(first.values()), set(found)
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
                    rows = self._checked(self.batch([sample for _, sample in samples]))
                    found |= zip((key for key, _ in samples), rows, strict=True)
                report_embedded(str(self), start + len(batch), len(todo), time.monotonic() - began)
                if time.monotonic() - since > _KEPT_AFTER:
                    kept, since = shelf.keep(found, kept), time.monotonic()
        finally:
            shelf.keep(found, kept)
        bad = {keys[i]: why for i, why in reasons.items()}
        reasons = {i: bad[key] for i, key in enumerate(keys) if key in bad}
        made = [found[key] for key in keys if key not in bad]
        return np.stack(made) if made else np.empty((0, 1), np.float32), reasons

    def _checked(self, vectors: NDArray[np.floating]) -> Vectors:
        # Networks without a head may leave a map of one pixel.
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


class _Shelf:
    """Cache on disk of one encoder's vectors: folders of keys and vectors, never rewritten."""

    def __init__(self, encoder: str) -> None:
        self._folder = cache_folder() / "embeddings" / f"{_VERSION}-{encoder[:32]}"

    def read(self, wanted: Iterable[str]) -> dict[str, Vectors]:
        """Return the cached vectors of the wanted keys, by key."""
        left, found = set(wanted), dict[str, Vectors]()
        for entry in sorted(self._folder.glob("[!.]*")):
            arrays = read_entry(entry, ("keys", "vectors"), mapped=True)
            if arrays is None:
                continue
            here = {str(key): row for row, key in enumerate(arrays["keys"])}
            found |= {key: np.array(arrays["vectors"][here[key]]) for key in left & here.keys()}
            left -= here.keys()
        return found

    def keep(self, found: Mapping[str, Vectors], kept: Iterable[str]) -> set[str]:
        """Store the vectors that the cache lacks, and return the keys of all stored ones."""
        new = [key for key in found if key not in kept]
        if new:
            arrays = {"keys": np.array(new), "vectors": np.stack([found[key] for key in new])}
            write_entry(self._folder / content_hash(new)[:32], arrays)
        return set(found)
