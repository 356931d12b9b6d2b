"""Loading of data sets by a name or a path."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.data.archives import ARCHIVE_SUFFIXES, is_archive
from ccfcpp.data.folder import read_images
from ccfcpp.data.images import ImageData, keep_classes, resize
from ccfcpp.data.npz import read_npz
from ccfcpp.data.registry import DATASETS, root_folder


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
        source: A name in `DATASETS`, or a path.
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
    path = Path(source).expanduser()
    try:
        if source not in DATASETS and (path.is_dir() or (path.is_file() and is_archive(path))):
            return read_images(
                path,
                image_size=image_size,
                folders_are_clients=folders_are_clients,
                classes=classes,
            )
        if source in DATASETS:
            data = DATASETS[source].load(root_folder(data_root))
        else:
            data = _read_npz(source, path)
    except OSError as error:
        raise UsageError(f"{source!r} cannot be read: {error}") from error
    if folders_are_clients:
        raise UsageError(
            f"folders can be clients only in an image folder, and {source!r} is none: give one, or "
            "take another --partition"
        )
    data = data if classes is None else keep_classes(data, classes)
    return data if image_size is None else replace(data, images=resize(data.images, image_size))


def _read_npz(source: str, path: Path) -> ImageData:
    if not path.is_file():
        close = difflib.get_close_matches(source.lower(), DATASETS, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UsageError(
            f"unknown data set {source!r}: {hint}Known: {', '.join(DATASETS)}, or a path: to an "
            ".npz file, or to an image folder or its archive, laid out as FOLDER/IMAGE, "
            "FOLDER/CLASS/IMAGE, or where folders are clients FOLDER/CLIENT/IMAGE or "
            "FOLDER/CLIENT/CLASS/IMAGE"
        )
    if path.suffix.lower() != ".npz":
        raise UsageError(
            f"{source!r} is neither an .npz file nor an image folder, nor an archive of one "
            f"({' '.join(ARCHIVE_SUFFIXES)})"
        )
    return read_npz(path)
