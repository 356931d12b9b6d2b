"""Images for a model: of its shape, with names, without classes or clients."""

from dataclasses import replace
from pathlib import Path

import torch

from ccfcpp.core.errors import UsageError
from ccfcpp.data import archives
from ccfcpp.data.archives import ARCHIVE_SUFFIXES
from ccfcpp.data.decoding import SUFFIXES, UNREAD, looks_like_image
from ccfcpp.data.images import ImageData, fit
from ccfcpp.data.npz import read_npz
from ccfcpp.data.reading import Options, Reading, check_share, no_images, read_files, sizes_of
from ccfcpp.data.walk import walk


def read_photos(path: Path, how: Options) -> ImageData:
    """Read images of one shape, in the plain order of their names.

    Args:
        path: A folder, in which files may lie at any depth, an archive of one, or an ``.npz``.
        how: How files are read, with a shape, to which all are resized. Grey images fill three
            channels.

    Raises:
        UsageError: There is no image, too many cannot be read, or they are in colour and the shape
            is grey.
    """
    assert how.shape is not None
    try:
        if path.is_file() and path.suffix.lower() == ".npz":
            images = read_npz(path)
            if images.images.shape[1] > how.shape[0]:
                raise UsageError(
                    f"the images of {path} are in colour, and the model is for grey ones: make "
                    "them grey"
                )
            return replace(images, images=fit(images.images, how.shape))
        if path.is_dir() or (path.is_file() and archives.is_archive(path)):
            return _of_files(path, how)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if path.exists():
        raise UsageError(
            f"{path} is neither a folder of images, nor an archive of one "
            f"({' '.join(ARCHIVE_SUFFIXES)}), nor an .npz file"
        )
    raise UsageError(f"there is no {path}: give a folder of images, an archive of one, or an .npz")


def _of_files(path: Path, how: Options) -> ImageData:
    with archives.opened(path, (*SUFFIXES, *UNREAD), looks_like_image) as tree:
        found = walk(tree)
        paths = list(found.below(tree.root))
        images, files = read_files(paths, [found.name(p) for p in paths], tree.source, how)
    check_share(files, how.skip, path)
    names = tuple(file.name for file in files if not file.reason)
    others = no_images(found.name(path) for paths in found.others.values() for path in paths)
    reading = Reading((*files, *others), sizes_of(files))
    return ImageData(path.name, torch.from_numpy(images), None, (), names=names, reading=reading)
