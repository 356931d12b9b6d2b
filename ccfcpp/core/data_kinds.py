"""The kind of a data set, images or vectors, decided by its path without reading it."""

from __future__ import annotations

import ast
import functools
import itertools
import re
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import IO, Literal

DataKind = Literal["images", "vectors"]

TABLE_SUFFIXES = (".npy", ".csv", ".parquet")
"""Files that hold vectors alone; an ``.npz`` may hold images or vectors."""
VECTOR_SUFFIXES = (*TABLE_SUFFIXES, ".npz")

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".gif", ".jp2", ".heic", ".heif", ".dcm", ".dicom"),
)
"""Suffixes of image files' names, in lower case."""
NO_IMAGE = "it is no image of a kind that is read"
_RUBBISH = frozenset(
    {
        *("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin"),
        *("@eadir", "#recycle", "#snapshot", "@recycle", "@recently-snapshot", "@tmp"),
        *("@synoresource", "@synoeastream", "@__thumb", "@sharesnap"),
        *("system volume information", "lost+found", "recycler"),
        *("network trash folder", "temporary items", *(f"found.{n:03}" for n in range(1000))),
    }
)
"""Names that operating systems and network storage add beside files, such as for thumbnails."""
_IMAGES_A_TABLE = 4
"""A folder with more images for each table than these holds images."""

_DEPTH = 6
"""Levels of folders in which images are looked for."""
_OF_VECTORS, _OF_EITHER = "vectors.npy", ("x.npy", "images.npy")
"""Arrays of an ``.npz`` by the names that they have in it."""
_NAME = re.compile("[A-Za-z0-9_-]+")
_HEADER_SIZES = {1: 2, 2: 4, 3: 4}
"""Bytes of the length of an array's header, by the version of its format."""


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is ignored: it is hidden, or made by the system."""
    return name.startswith((".", "~$")) or name.lower() in _RUBBISH


def kind_of(source: str, encoder: object = None) -> DataKind | None:
    """Return the kind of data at a path; None if it does not exist or is unclear.

    A name of a data set, such as ``mnist``, means images. An encoder makes vectors of any data.
    """
    if encoder:
        return "vectors"
    if not source.strip():
        return None  # As a path it would be the current folder.
    path = Path(source).expanduser()
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return "vectors"
    try:
        if path.is_dir():
            return _kind_of_folder(path, path.stat().st_mtime_ns)
        if path.is_file():
            return _kind_of_npz(path) if suffix == ".npz" else "images"
    except (OSError, ValueError, SyntaxError, LookupError, zipfile.BadZipFile):
        return None  # Whoever reads it says what is wrong with it.
    return "images" if _NAME.fullmatch(source) else None


@functools.lru_cache(maxsize=8)
def _kind_of_folder(path: Path, changed: int) -> DataKind:
    """Return the kind of data in a folder, cached until the folder changes."""
    tables = len(files_of(path))
    return "vectors" if tables and not _has_many_images(path, tables) else "images"


def files_of(folder: Path, suffixes: Collection[str] = VECTOR_SUFFIXES) -> list[Path]:
    """Return the files in a folder that have one of the suffixes, sorted; no hidden ones."""
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in suffixes and not is_hidden(file.name)
    )


def _has_many_images(folder: Path, tables: int) -> bool:
    """Return whether there are many images for each table; then tables only describe images."""
    # Not `rglob`, which follows no links.
    files = itertools.chain.from_iterable(
        folder.glob("*/" * depth + "*") for depth in range(_DEPTH)
    )
    # Runs have figures, and may lie beside their data.
    images = (
        file
        for file in files
        if file.suffix.lower() in IMAGE_SUFFIXES
        and file.parent.name != "figures"
        and not any(map(is_hidden, file.relative_to(folder).parts))
    )
    return next(itertools.islice(images, _IMAGES_A_TABLE * tables, None), None) is not None


def _kind_of_npz(path: Path) -> DataKind:
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        if _OF_VECTORS in names:
            return "vectors"
        for name in names.intersection(_OF_EITHER):
            with archive.open(name) as file:
                return "vectors" if len(_shape(file)) == 2 else "images"
    return "images"


def _shape(file: IO[bytes]) -> tuple[int, ...]:
    """Return the shape in the header of an ``.npy`` file (NEP 1), without importing numpy."""
    version = file.read(8)[6]
    length = int.from_bytes(file.read(_HEADER_SIZES[version]), "little")
    shape: tuple[int, ...] = ast.literal_eval(file.read(length).decode("latin1"))["shape"]
    return shape
