"""Images from a folder of image files.

Layouts, where `train/` and `test/` may each stand between the folder and the rest:

    folder/CLASS/IMAGE        labelled
    folder/IMAGE              unlabelled

and, when each top-level folder is a client, `folder/CLIENT/CLASS/IMAGE` or `folder/CLIENT/IMAGE`.
Everything is taken in the plain sorted order of names ("10" before "2"), train before test.
Hidden files and files that are not images are ignored.
"""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.images import ImageData, resize
from ccfcpp.errors import UsageError

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# Named, so that a file with an image's name never reaches a decoder that starts a program (EPS).
_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM")
_SPLITS = ("train", "test")
_GREY_MODES = ("1", "L", "LA", "La")
_GREY_16_BIT_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N")


class _File(NamedTuple):
    path: Path
    class_name: str | None
    owner: str | None = None


def read_folder(
    folder: Path, *, image_size: int | None = None, folders_are_clients: bool = False
) -> ImageData:
    """Read a folder of images; its files are decoded once and then cached.

    One channel if all images are grey, else three. Palettes are resolved, alpha is dropped, 16-bit
    grey is scaled to 8 bits, and pixels are taken as stored (no rotation by EXIF).

    Args:
        folder: The folder, laid out as described above.
        image_size: Resize every image to this height and width; without it, all must have one size.
        folders_are_clients: Whether each top-level folder is a client, which owns what it holds.

    Returns:
        The images, with `owners` exactly if `folders_are_clients`.

    Raises:
        UsageError: If the layout is mixed or empty, an image is broken, or the sizes differ.
    """
    files = _client_files(folder) if folders_are_clients else _files(folder)
    if len({file.class_name is None for file in files}) > 1:
        raise UsageError(f"{folder} is labelled in parts only: put all images into class folders")
    paths = [file.path for file in files]
    arrays = cached(
        paths, f"folder image_size={image_size}", ("images",), lambda: _decode(paths, image_size)
    )
    labels, classes = _indices([file.class_name for file in files])
    owners, owner_names = _indices([file.owner for file in files])
    images = torch.from_numpy(arrays["images"])
    return ImageData(folder.resolve().name, images, labels, classes, owners, owner_names)


def _indices(names: Sequence[str | None]) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    distinct = tuple(sorted({name for name in names if name is not None}))
    if not distinct:
        return None, ()
    index = {name: i for i, name in enumerate(distinct)}
    return torch.tensor([index[name] for name in names if name is not None]), distinct


def _client_files(folder: Path) -> list[_File]:
    owners, images = _entries(folder)
    if images:
        raise UsageError(
            f"{images[0]} belongs to no client: with folders as clients, "
            "put every image into a client's folder"
        )
    if not owners:
        raise UsageError(f"{folder} has no client folders")
    return [file._replace(owner=owner.name) for owner in owners for file in _files(owner)]


def _files(folder: Path) -> list[_File]:
    folders, images = _entries(folder)
    names = {sub.name for sub in folders}
    if names and names <= set(_SPLITS) and not images:
        return [
            file for split in _SPLITS if split in names for file in _class_files(folder / split)
        ]
    return _class_files(folder)


def _class_files(folder: Path) -> list[_File]:
    folders, images = _entries(folder)
    if images and folders:
        raise UsageError(
            f"{folder} holds both images ({images[0].name}) and folders ({folders[0].name}): "
            "put all images into class folders, or none"
        )
    if not images and not folders:
        raise UsageError(f"{folder} holds no image ({' '.join(_SUFFIXES)})")
    in_classes = [_File(path, sub.name) for sub in folders for path in _images_of_class(sub)]
    return in_classes or [_File(path, None) for path in images]


def _images_of_class(folder: Path) -> list[Path]:
    folders, images = _entries(folder)
    if folders:
        raise UsageError(
            f"the class folder {folder} holds a folder ({folders[0].name}): images must lie in "
            "FOLDER/CLASS/, or in train/ and test/ with nothing beside them"
        )
    if not images:
        raise UsageError(f"the class folder {folder} holds no image ({' '.join(_SUFFIXES)})")
    return images


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sub-folders and the image files in `folder`, each sorted, none hidden."""
    with os.scandir(folder) as entries:
        shown = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
    folders = [Path(e.path) for e in shown if e.is_dir()]
    images = [Path(e.path) for e in shown if e.name.lower().endswith(_SUFFIXES) and e.is_file()]
    return folders, images


def _decode(paths: Sequence[Path], image_size: int | None) -> Arrays:
    # The headers first: they tell the number of channels, and a wrong size before long work.
    modes, sizes = zip(*(_header(path) for path in paths), strict=True)
    width, height = sizes[0]
    if image_size is not None:
        width = height = image_size
    else:
        _check_sizes(paths, sizes)
    channels = 1 if all(_is_grey(mode) for mode in modes) else 3
    images = np.empty((len(paths), channels, height, width), np.uint8)
    for i, path in enumerate(paths):
        images[i] = _pixels(path, image_size)  # a grey image fills all channels
    return {"images": images}


def _check_sizes(paths: Sequence[Path], sizes: Sequence[tuple[int, int]]) -> None:
    for path, (width, height) in zip(paths, sizes, strict=True):
        if (width, height) != sizes[0]:
            raise UsageError(
                f"{path} is {width}x{height}, but {paths[0]} is {sizes[0][0]}x{sizes[0][1]}: "
                "give one size to all, for instance --set data.image_size=32"
            )


def _header(path: Path) -> tuple[str, tuple[int, int]]:
    with _opened(path) as image:
        return image.mode, image.size


def _pixels(path: Path, image_size: int | None) -> NDArray[np.uint8]:
    """Decode one image to `(channels, height, width)`, resized if asked."""
    with _opened(path) as image:
        pixels = _to_8_bits(image)
    if image_size is None:
        return pixels
    return resize(torch.from_numpy(pixels)[None], image_size)[0].numpy()


def _to_8_bits(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode in _GREY_16_BIT_MODES:
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("its values need more than 16 bits")
        return np.rint(values / 257).astype(np.uint8)[None]
    if image.mode == "F":
        raise ValueError("its values are floating-point numbers")
    if _is_grey(image.mode):
        return np.array(image.convert("L"))[None]
    return np.array(image.convert("RGB")).transpose(2, 0, 1)


def _is_grey(mode: str) -> bool:
    return mode in _GREY_MODES or mode in _GREY_16_BIT_MODES


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata
            # An image large enough to exhaust the memory when decoded is refused.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                yield image
    except Exception as error:  # decoders raise almost anything on broken files
        raise UsageError(f"{path} cannot be read as an image: {error}") from error
