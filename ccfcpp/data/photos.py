"""Images with names, without classes or clients."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.data import archives
from ccfcpp.data.archives import ARCHIVE_SUFFIXES, Tree
from ccfcpp.data.decoding import SUFFIXES, decode_images
from ccfcpp.data.images import resize
from ccfcpp.data.npz import read_npz


@dataclass(frozen=True, eq=False)
class Photos:
    """Images, uint8 of shape (images, channels, height, width), with names.

    A name is a file's path below the folder or in the archive, with slashes; in an ``.npz`` the
    index.
    """

    names: tuple[str, ...]
    images: Tensor


def read_photos(path: Path, shape: tuple[int, ...], *, resized: bool) -> Photos:
    """Read images of one shape, in the plain order of their names.

    Args:
        path: A folder, in which files may lie at any depth, an archive of one, or an ``.npz``.
            Hidden files and files that are no images are ignored, and links to folders not
            followed.
        shape: The wanted channels, height and width. Grey images fill three channels.
        resized: Whether to resize to that height and width; without it all must have them.

    Raises:
        UsageError: There is no image, one is broken, or they are of another shape.
    """
    try:
        photos = _read(path, shape, resized)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    _check_shape(path, tuple(photos.images.shape[1:]), shape)
    return photos


def _read(path: Path, shape: tuple[int, ...], resized: bool) -> Photos:
    if path.is_file() and path.suffix.lower() == ".npz":
        images = read_npz(path).images
        if images.shape[1] == 1:
            images = images.expand(-1, shape[0], -1, -1)
        images = resize(images, shape[1]) if resized else images
        return Photos(tuple(map(str, range(len(images)))), images)
    if path.is_dir() or (path.is_file() and archives.is_archive(path)):
        return _of_files(path, shape, resized)
    if path.exists():
        raise UsageError(
            f"{path} is neither a folder of images, nor an archive of one "
            f"({' '.join(ARCHIVE_SUFFIXES)}), nor an .npz file"
        )
    raise UsageError(f"there is no {path}: give a folder of images, an archive of one, or an .npz")


def _of_files(path: Path, shape: tuple[int, ...], resized: bool) -> Photos:
    channels, height, width = shape
    with archives.opened(path, SUFFIXES) as tree:
        files = list(_images(tree, tree.root))
        if not files:
            raise UsageError(f"{path} holds no image ({' '.join(SUFFIXES)})")
        images = decode_images(
            files,
            tree.source,
            image_size=height if resized else None,
            # Where the model is for grey images, colours must show, to be refused.
            channels=channels if channels > 1 else None,
            mend=f"resize all to {width}x{height}",
        )
    names = tuple(file.relative_to(path).as_posix() for file in files)
    return Photos(names, torch.from_numpy(images))


def _images(tree: Tree, folder: Path) -> Iterator[Path]:
    """Yield the image files below a folder: its own first, then those of each folder inside."""
    folders, files = tree.entries(folder)
    yield from (file for file in files if file.name.lower().endswith(SUFFIXES))
    for inner in folders:
        if not inner.is_symlink():  # which may lead back up
            yield from _images(tree, inner)


def _check_shape(path: Path, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if found == wanted:
        return
    mends = [f"resize them to {wanted[2]}x{wanted[1]}"] if found[1:] != wanted[1:] else []
    if found[0] != wanted[0]:
        mends.append("make them grey" if wanted[0] == 1 else f"give {wanted[0]} channels")
    raise UsageError(
        f"the images of {path} are {_in_words(found)}, and the model is for {_in_words(wanted)}: "
        f"{' and '.join(mends)}"
    )


def _in_words(shape: tuple[int, ...]) -> str:
    channels, height, width = shape
    return f"{width}x{height} with {channels} channel{'s' if channels > 1 else ''}"
