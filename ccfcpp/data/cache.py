"""A cache on disk of decoded arrays and unpacked archives, so that a slow source is read once.

An entry is a folder that never changes: a changed source gets a new entry. Only its owner may read
it. Beyond a total size, the entries that were used longest ago are deleted. The cache folder may be
deleted at any time.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ccfcpp.data.registry import user_folder

Arrays = dict[str, NDArray[np.generic]]

# Part of every key: raise it when what is decoded from the same files changes.
_DECODING = 5
_MOST_BYTES = 50 * 2**30
"""Largest total size of all entries; only the newest one may be larger by itself."""
_ENTRY = re.compile("[0-9a-f]{32}")
"""Names of entries' folders: the cache folder may hold other files."""
_writes = ContextVar("writes", default=True)

_log = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Return the folder of the cache: `$CCFCPP_CACHE`, or `decoded` in the user's cache folder."""
    configured = os.environ.get("CCFCPP_CACHE")
    return Path(configured).expanduser() if configured else user_folder() / "decoded"


@contextmanager
def without_cache_writes() -> Iterator[None]:
    """Disable writing to the cache within the context."""
    before = _writes.set(False)
    try:
        yield
    finally:
        _writes.reset(before)


def cached(
    files: Iterable[Path], options: str, names: tuple[str, ...], decode: Callable[[], Arrays]
) -> Arrays:
    """Return the arrays that `decode` makes from files, read from the cache if they are there.

    Otherwise they are decoded and written to the cache, if it can be written.

    Args:
        files: The files that `decode` reads, in order; the cache compares their paths, sizes and
            times of change.
        options: Everything else that the result depends on.
        names: Names of the arrays to read.
        decode: Returns the arrays by name; none may have dtype object.
    """
    entry = cache_folder() / _key(files, options)
    arrays = read_entry(entry, names)
    if arrays is None:
        arrays = decode()
        if _writes.get():
            write_entry(entry, arrays)
    return arrays


def _key(files: Iterable[Path], options: str) -> str:
    digest = hashlib.sha256(json.dumps([_DECODING, options]).encode())
    for file in files:
        line = [str(file.absolute())]
        with suppress(OSError):  # a broken link has only a name
            status = file.stat()
            line += [str(status.st_size), str(status.st_mtime_ns), str(status.st_mode)]
        digest.update(json.dumps(line).encode())
    return digest.hexdigest()[:32]


def read_entry(entry: Path, names: tuple[str, ...], *, mapped: bool = False) -> Arrays | None:
    """Return the arrays of a cache entry, read or memory-mapped; None if they cannot be read."""
    mode: Literal["r"] | None = "r" if mapped else None
    try:
        with suppress(OSError):  # such as on a read-only disk
            os.utime(entry)
        return {name: np.load(entry / f"{name}.npy", mode, allow_pickle=False) for name in names}
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError) as error:
        _log.debug("cache entry %s cannot be read (%s): decoding again", entry, error)
        return None


def write_entry(entry: Path, arrays: Arrays) -> None:
    """Write arrays to a cache entry, atomically; do nothing if the cache cannot be written."""
    try:
        with _new_entry(entry) as whole:
            for name, array in arrays.items():
                file = whole / f"{name}.npy"
                file.touch(mode=0o600)
                np.save(file, array, allow_pickle=False)
            # An existing entry could not be read.
            shutil.rmtree(entry, ignore_errors=True)
    except OSError as error:
        _log.debug("cache entry %s cannot be written (%s): going without", entry, error)


@contextmanager
def cached_folder(
    files: Iterable[Path], options: str, fill: Callable[[Path], None]
) -> Iterator[Path]:
    """Yield a folder filled by `fill`: the cached one if there is one, else a new one.

    If the cache cannot be written, the folder is deleted after the context. The arguments `files`
    and `options` are those of `cached`.
    """
    entry = cache_folder() / _key(files, options)
    if not entry.is_dir():
        with suppress(OSError):
            entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(entry.parent, os.W_OK):
            with tempfile.TemporaryDirectory() as temporary:
                fill(Path(temporary))
                yield Path(temporary)
            return
        with _new_entry(entry) as whole:
            fill(whole)
    with suppress(OSError):
        os.utime(entry)
    yield entry


@contextmanager
def _new_entry(entry: Path) -> Iterator[Path]:
    """Yield an empty folder to be filled; at the end it is renamed to the cache entry."""
    entry.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix=".new-") as temporary:
        whole = Path(temporary) / entry.name
        whole.mkdir(mode=0o700)
        yield whole
        try:
            whole.replace(entry)
        except OSError:
            if not entry.is_dir():  # else another process was quicker
                raise
    _delete_oldest(entry)


def _delete_oldest(newest: Path) -> None:
    """Delete the least recently used entries, never ``newest``, until the cache is small enough."""
    entries = [*cache_folder().glob("*"), *cache_folder().glob("embeddings/*/*")]
    sizes, used = Counter[Path](), dict[Path, float]()
    for entry in entries:
        with suppress(FileNotFoundError):  # another process deletes it
            if _ENTRY.fullmatch(entry.name):
                used[entry] = entry.stat().st_mtime
                files = (file.lstat() for file in entry.rglob("*") if not file.is_dir())
                sizes[entry] = sum(file.st_size for file in files)
    for entry in sorted(sizes.keys() - {newest}, key=lambda entry: used[entry]):
        with suppress(PermissionError, FileNotFoundError):
            entry.chmod(0o700)  # earlier versions let every user in
        if sizes.total() > _MOST_BYTES:
            shutil.rmtree(entry, ignore_errors=True)
            del sizes[entry]
