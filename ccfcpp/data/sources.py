"""From what a user asks for, a name or a path, to the data."""

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from sklearn.datasets import load_digits

from ccfcpp.core.errors import UsageError
from ccfcpp.data.archive import read_npz
from ccfcpp.data.cache import user_folder
from ccfcpp.data.folder import read_archive, read_folder
from ccfcpp.data.images import ImageData, keep_classes, resize
from ccfcpp.data.trees import ARCHIVE_SUFFIXES, is_archive

if TYPE_CHECKING:
    from ccfcpp.data.published import Published

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "stl10", "tiny-imagenet")
"""The data sets that ``load`` knows by name."""


@dataclass(frozen=True)
class Description:
    """One row of the list of named data sets.

    Attributes:
        name: The name to ask for.
        images: The number of images.
        classes: The number of classes.
        shape: Channels, height and width of an image.
        place: Where it is, or where it would be downloaded to.
    """

    name: str
    images: int
    classes: int
    shape: tuple[int, int, int]
    place: str


def load(
    source: str,
    *,
    data_root: Path | None = None,
    image_size: int | None = None,
    folders_are_clients: bool = False,
    classes: Sequence[str] | None = None,
) -> ImageData:
    """Load a data set by its name, or from an image folder, an archive of one, or an `.npz` file.

    A name wins over a file of the same name; write `./mnist` for the file. An archive (`.zip`,
    `.tar`, `.tar.gz`) is not unpacked on disk, and never taken for a named data set.

    Args:
        source: One of `NAMES`, or a path.
        data_root: Where named data sets lie or are downloaded to. Default: `$CCFCPP_DATA`, else
            `data` in the user's cache folder.
        image_size: Resize to this height and width; None keeps the size.
        folders_are_clients: Whether each top-level folder of an image folder is a client.
        classes: The names of the only classes to load; None loads all.

    Returns:
        uint8 images `(samples, channels, height, width)` with int64 labels if there are any. A
        named data set has its training images first and the test images after them, in the
        original order. `test` tells them apart where the publisher did.

    Raises:
        UsageError: If the source is unknown, missing or broken; the message is one line.
    """
    if image_size is not None and image_size < 1:
        raise UsageError(f"data.image_size is {image_size}, but must be at least 1")
    try:
        return _load(source, root_folder(data_root), image_size, folders_are_clients, classes)
    except OSError as error:
        raise UsageError(f"{source!r} cannot be read: {error}") from error


def describe(data_root: Path | None = None) -> tuple[Description, ...]:
    """Describe every named data set, and say where under `data_root` (as in `load`) it lies."""
    root = root_folder(data_root)
    rows = [Description("digits", 1797, 10, (1, 8, 8), "scikit-learn")]
    for it in _published().values():
        place = it.find(root)
        text = f"to be downloaded to {root}" if place is None else str(place)
        rows.append(Description(it.name, it.images, it.classes, it.shape, text))
    return tuple(rows)


def _load(
    source: str,
    root: Path,
    image_size: int | None,
    folders_are_clients: bool,
    classes: Sequence[str] | None,
) -> ImageData:
    path = Path(source).expanduser()
    read_images = None if source in NAMES else _reader_of_images(path)
    if read_images is not None:
        return read_images(
            path, image_size=image_size, folders_are_clients=folders_are_clients, classes=classes
        )
    data = _named_or_npz(source, path, root)
    if folders_are_clients:
        raise UsageError(
            f"folders can be clients only in an image folder, and {source!r} is none: give one, or "
            "take another --partition"
        )
    data = data if classes is None else keep_classes(data, classes)
    return data if image_size is None else replace(data, images=resize(data.images, image_size))


def _reader_of_images(path: Path) -> Callable[..., ImageData] | None:
    if path.is_dir():
        return read_folder
    return read_archive if path.is_file() and is_archive(path) else None


def _named_or_npz(source: str, path: Path, root: Path) -> ImageData:
    if source == "digits":
        return _digits()
    if source in NAMES:
        return _published()[source].load(root)
    if not path.is_file():
        raise UsageError(_unknown(source))
    if path.suffix.lower() != ".npz":
        raise UsageError(
            f"{source!r} is neither an .npz file nor an image folder, nor an archive of one "
            f"({' '.join(ARCHIVE_SUFFIXES)})"
        )
    return read_npz(path)


def _published() -> dict[str, "Published"]:
    # Imported where it is needed: it brings all of torchvision, which takes seconds.
    from ccfcpp.data.published import PUBLISHED

    return {published.name: published for published in PUBLISHED}


def root_folder(data_root: Path | None) -> Path:
    """Return the folder of the named data sets: `data_root`, else as `load` has it."""
    configured = data_root or os.environ.get("CCFCPP_DATA") or user_folder() / "data"
    return Path(configured).expanduser()


def _digits() -> ImageData:
    digits = load_digits()
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    return ImageData(
        "digits",
        torch.from_numpy(images[:, None]),
        torch.from_numpy(digits.target.astype(np.int64)),
        tuple(str(name) for name in digits.target_names),
    )


def _unknown(source: str) -> str:
    close = difflib.get_close_matches(source.lower(), NAMES, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    paths = "a path to an image folder or an .npz or an archive of images"
    return f"unknown data set {source!r}: {hint}Known: {', '.join(NAMES)}, or {paths}"
