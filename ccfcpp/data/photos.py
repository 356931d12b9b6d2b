"""Images for a model: of its shape, or embedded, with names, without classes or clients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import IMAGE_SUFFIXES
from ccfcpp.data import archives
from ccfcpp.data.archives import ARCHIVE_SUFFIXES
from ccfcpp.data.decoding import UNREAD, looks_like_image
from ccfcpp.data.images import ImageData, fit
from ccfcpp.data.npz import read_npz
from ccfcpp.data.reading import Options, Reading, check_share, read_files, sizes_of
from ccfcpp.data.vectors import VectorData
from ccfcpp.data.walk import walk

_SMALL = 64
"""Pixels a side of a small image."""


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
    images = _read(path, how)
    assert isinstance(images, ImageData)
    return images


def embed_photos(path: Path, how: Options) -> VectorData:
    """Read the same with an encoder, which makes vectors of images of any size."""
    vectors = _read(path, how)
    assert isinstance(vectors, VectorData)
    return vectors


def thumbnails(path: Path, how: Options, names: Sequence[str]) -> Mapping[str, Tensor]:
    """Return small images of files of a folder or an archive, by their names."""
    with archives.opened(path, (*IMAGE_SUFFIXES, *UNREAD), looks_like_image) as tree:
        found = walk(tree)
        by_name = {found.name(file): file for file in found.below(tree.root)}
        there = [name for name in names if name in by_name]
        small = replace(how, shape=(3, _SMALL, _SMALL), encoder=None)
        images, files = read_files([by_name[name] for name in there], there, tree.source, small)
    read = (file.name for file in files if not file.reason)
    return dict(zip(read, torch.from_numpy(images), strict=True))


def _read(path: Path, how: Options) -> ImageData | VectorData:
    try:
        if path.is_file() and path.suffix.lower() == ".npz":
            images = read_npz(path)
            assert how.shape is not None
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


def _of_files(path: Path, how: Options) -> ImageData | VectorData:
    with archives.opened(path, (*IMAGE_SUFFIXES, *UNREAD), looks_like_image) as tree:
        found = walk(tree)
        paths = list(found.below(tree.root))
        images, files = read_files(paths, [found.name(p) for p in paths], tree.source, how)
    check_share(files, how.skip, path)
    names = tuple(file.name for file in files if not file.reason)
    reading = Reading((*files, *found.no_images()), sizes_of(files), hidden=tuple(found.hidden))
    values = torch.from_numpy(images)
    if how.encoder is not None:
        return VectorData(path.name, values, names=names, reading=reading)
    return ImageData(path.name, values, None, (), names=names, reading=reading)
