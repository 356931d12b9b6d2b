"""Entry point for data: open images or vectors by name or path, and embed them if asked."""

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ccfcpp.core.config import DataConfig, VectorsConfig
from ccfcpp.core.config_layers import validated
from ccfcpp.core.data_kinds import kind_of
from ccfcpp.core.errors import UsageError
from ccfcpp.data.archives import ARCHIVE_SUFFIXES, is_archive
from ccfcpp.data.encoders.encoder import Encoder
from ccfcpp.data.encoding import embed_images, read_encoded_texts
from ccfcpp.data.folder import keep_classes, read_folder
from ccfcpp.data.image_size import Shape, common_shape
from ccfcpp.data.images import ImageData, fit
from ccfcpp.data.npz import read_npz
from ccfcpp.data.registry import DATASETS, root_folder
from ccfcpp.data.tables import read_vectors
from ccfcpp.data.vectors import VectorData

AnyData = ImageData | VectorData


def open_dataset(
    source: str,
    encoder: Encoder | None = None,
    *,
    data: DataConfig = DataConfig(),  # noqa: B008 - it cannot change
    vectors: VectorsConfig = VectorsConfig(),  # noqa: B008 - it cannot change
    folders_are_clients: bool = False,
    flat: bool = False,
    shape: Shape | None = None,
    columns: Sequence[str] = (),
) -> AnyData:
    """Read images or vectors, or embed images or texts as vectors.

    Args:
        source: A name in `DATASETS`, or a path. A name wins over a file of the same name.
        encoder: Embeds images of any size, or texts, as vectors.
        data: How images are read, and the folder of named data sets.
        vectors: Roles of the columns of a table of vectors, or of texts.
        folders_are_clients: Whether each top-level folder of images is a client, or each name in
            the array `clients` of an `.npz`, or in the client column of a table.
        flat: Whether to ignore folders, so that images have no classes.
        shape: Channels, height and width of a user's images; overrides `data.image_size`.
        columns: Names of the columns to read, in this order, of tables with names; empty: all.

    Raises:
        UsageError: If the source is unknown, missing or broken, or holds what the encoder does not
            take; the message is one line.
    """
    path = Path(source).expanduser()
    if not folders_are_clients:
        vectors = vectors.model_copy(update={"client_column": None})
    if encoder is not None and encoder.name.takes == "texts":
        return read_encoded_texts(path, encoder, vectors)
    is_named = source in DATASETS
    if not is_named and kind_of(source) == "vectors":
        if encoder is not None:
            raise UsageError(
                f"{source} holds vectors, and encoder {encoder.name.called} takes images: leave "
                "the encoder out, or give images"
            )
        return read_vectors(path, vectors, columns)
    return _open_images(source, encoder, data, folders_are_clients, None, flat, shape)


def open_images(
    source: str,
    *,
    data: DataConfig,
    folders_are_clients: bool = False,
    classes: Sequence[str] | None = None,
    flat: bool = False,
    shape: Shape | None = None,
) -> ImageData:
    """Read images of all or of the given classes; other arguments are as in ``open_dataset``."""
    images = _open_images(source, None, data, folders_are_clients, classes, flat, shape)
    assert isinstance(images, ImageData)
    return images


def load(
    source: str,
    *,
    data_root: Path | None = None,
    image_size: int | None = None,
    folders_are_clients: bool = False,
    classes: Sequence[str | int] | None = None,
    window: tuple[float, float] | None = None,
    skip: float = DataConfig().skip,
    max_pixels: int = DataConfig().max_pixels,
    shape: Shape | None = None,
) -> ImageData:
    """Load images by the name of a data set, or from a folder, an archive of one, or an `.npz`.

    A name wins over a file of the same name; write `./mnist` for the file. An archive (`.zip`,
    `.tar`, `.tar.gz`) is never taken for a named data set.

    Args:
        source: A name in `DATASETS`, or a path.
        data_root: The folder for named data sets and downloads. Default: `$CCFCPP_DATA`, else
            `data` in the user's cache folder.
        image_size: Resize to this height and width. None keeps the size of a named data set, and
            chooses that of other images by `ccfcpp.data.image_size.common_shape`.
        folders_are_clients: Whether each top-level folder of an image folder is a client, or each
            name in the array `clients` of an `.npz`.
        classes: The names of the only classes to load, or numbers that are names; None loads all.
        window: In files of more than 8 bits, the values that become 0 and 255; None: the window
            of a DICOM file, or else the smallest and the largest value of the image.
        skip: Largest share of unreadable files, which are left out; above 0, one is always allowed.
        max_pixels: Largest number of pixels of an image; files with more are left out.
        shape: Channels, height and width of a user's images; overrides `image_size`.

    Returns:
        uint8 images `(samples, channels, height, width)` with int64 labels if there are any. A
        named data set has its training images first and the test images after them, in the
        original order. `test` tells them apart if the publisher did. Images from files have
        `names`, and `reading` lists the files that were left out.

    Raises:
        UsageError: If the source is unknown, missing or broken; the message is one line.

    Example:
        >>> import ccfcpp
        >>> digits = ccfcpp.load("digits")
        >>> digits.images.shape, len(digits.classes)
        (torch.Size([1797, 1, 8, 8]), 10)
    """
    settings = {"image_size": image_size, "window": window, "skip": skip, "max_pixels": max_pixels}
    root = None if data_root is None else str(data_root)
    return open_images(
        source,
        data=validated(DataConfig, settings | {"root": root}),
        folders_are_clients=folders_are_clients,
        classes=None if classes is None else [*map(str, classes)],
        shape=shape,
    )


def _open_images(
    source: str,
    encoder: Encoder | None,
    how: DataConfig,
    folders_are_clients: bool,
    classes: Sequence[str] | None,
    flat: bool,
    shape: Shape | None,
) -> AnyData:
    if not source.strip():
        raise UsageError("the name of the data set is empty: give one, or a path")
    path, is_named = Path(source).expanduser(), source in DATASETS
    try:
        if not is_named and (path.is_dir() or (path.is_file() and is_archive(path))):
            return read_folder(
                path,
                how=how,
                shape=shape,
                encoder=encoder,
                folders_are_clients=folders_are_clients,
                classes=classes,
                flat=flat,
            )
        if is_named:
            root = root_folder(Path(how.root) if how.root else None)
            with DATASETS.blaming(source):
                images = DATASETS[source].load(root)
            if path.exists() and path.resolve() != (root / source).resolve():
                note = f"{source} is the named data set: write ./{source} for what lies here"
                images = replace(images, notes=(*images.notes, note))
        else:
            images = _read_npz(source, path)
    except OSError as error:
        raise UsageError(f"{source!r} cannot be read: {error}") from error
    if folders_are_clients and images.owners is None:
        raise UsageError(
            "folders can be clients only in an image folder, or an .npz file with an array "
            f"'clients', and {source!r} is neither: give one, or take another --partition"
        )
    if encoder is not None:
        return embed_images(images, encoder)
    if not is_named:
        shape = shape or common_shape([images.sizes], how.image_size)
    elif how.image_size is not None:
        shape = images.images.shape[1], how.image_size, how.image_size
    else:
        shape = None
    images = images if classes is None else keep_classes(images, classes)
    if shape is None:
        return images
    if images.images.shape[1] > shape[0]:
        raise UsageError(
            f"the images of {source} are in colour, and grey ones are wanted: make them grey"
        )
    return replace(images, values=fit(images.images, shape))


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
