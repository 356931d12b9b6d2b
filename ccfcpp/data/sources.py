"""Loading of data sets by a name or a path."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.data.archives import ARCHIVE_SUFFIXES, is_archive
from ccfcpp.data.choosing import keep_classes
from ccfcpp.data.decoding import MOST_PIXELS
from ccfcpp.data.folder import read_images
from ccfcpp.data.images import ImageData, fit
from ccfcpp.data.npz import read_npz
from ccfcpp.data.reading import SKIP, Options
from ccfcpp.data.registry import DATASETS, root_folder
from ccfcpp.data.sizes import Shape, settled


def load(
    source: str,
    *,
    data_root: Path | None = None,
    image_size: int | None = None,
    folders_are_clients: bool = False,
    classes: Sequence[str] | None = None,
    window: tuple[float, float] | None = None,
    skip: float = SKIP,
    max_pixels: int = MOST_PIXELS,
    shape: Shape | None = None,
) -> ImageData:
    """Load a data set by its name, or from an image folder, an archive of one, or an `.npz` file.

    A name wins over a file of the same name; write `./mnist` for the file. An archive (`.zip`,
    `.tar`, `.tar.gz`) is not unpacked on disk, and never taken for a named data set.

    Args:
        source: A name in `DATASETS`, or a path.
        data_root: Where named data sets lie or are downloaded to. Default: `$CCFCPP_DATA`, else
            `data` in the user's cache folder.
        image_size: Resize to this height and width. None keeps the size of a named data set, and
            lets that of other images follow from them, as `ccfcpp.data.sizes.settled` says.
        folders_are_clients: Whether each top-level folder of an image folder is a client, or each
            name in the array `clients` of an `.npz`.
        classes: The names of the only classes to load; None loads all.
        window: In files of more than 8 bits, the values that become 0 and 255; None takes the
            window of a DICOM file, or else the smallest and the largest value of the image.
        skip: Share of the files that may be unreadable and are left out; above 0 at least one may.
        max_pixels: The most pixels of a file's image.
        shape: Channels, height and width of all images of a user, over `image_size`.

    Returns:
        uint8 images `(samples, channels, height, width)` with int64 labels if there are any. A
        named data set has its training images first and the test images after them, in the
        original order. `test` tells them apart where the publisher did. Files have their `names`,
        and `reading` has those that were left out.

    Raises:
        UsageError: If the source is unknown, missing or broken; the message is one line.
    """
    if image_size is not None and image_size < 1:
        raise UsageError(f"data.image_size is {image_size}, but must be at least 1")
    path = Path(source).expanduser()
    try:
        if source not in DATASETS and (path.is_dir() or (path.is_file() and is_archive(path))):
            how = Options(image_size, shape, window, max_pixels, skip)
            return read_images(
                path, how=how, folders_are_clients=folders_are_clients, classes=classes
            )
        if source in DATASETS:
            data = DATASETS[source].load(root_folder(data_root))
        else:
            data = _read_npz(source, path)
            shape = shape or settled([data.sizes], image_size)
    except OSError as error:
        raise UsageError(f"{source!r} cannot be read: {error}") from error
    if folders_are_clients and data.owners is None:
        raise UsageError(
            "folders can be clients only in an image folder, or an .npz file with an array "
            f"'clients', and {source!r} is neither: give one, or take another --partition"
        )
    data = data if classes is None else keep_classes(data, classes)
    if source in DATASETS:
        if image_size is None:
            return data
        shape = data.images.shape[1], image_size, image_size
    assert shape is not None
    return replace(data, images=fit(data.images, shape))


def _read_npz(source: str, path: Path) -> ImageData:
    if not path.is_file():
        if "/" in source or "\\" in source or is_archive(path) or path.suffix == ".npz":
            raise UsageError(
                f"there is no {'folder' if source.endswith('/') else 'file or folder'} {source}: "
                "give a folder of images, an archive of one, or an .npz file that is there"
            )
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
