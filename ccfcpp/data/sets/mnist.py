"""MNIST and Fashion-MNIST: four IDX files, each gzipped or plain."""

import gzip
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.data.cache import Arrays
from ccfcpp.data.sets.published import Published, split_mask, torchvision_class

_GZIP_MAGIC = b"\x1f\x8b"
_UINT8 = 0x08
_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class IdxSet(Published):
    """Data set in MNIST's format: training and test images and labels, in four IDX files.

    Attributes:
        original: The name of torchvision's class, and of the folder that it creates.
        class_names: The names of the classes.
    """

    original: str
    class_names: tuple[str, ...]

    @property
    def expected(self) -> str:
        """Description of the files that the data sets' folder must hold."""
        return f"{', '.join(f'{file}.gz' for file in _FILES)} (in {self.name}/)"

    def find(self, root: Path) -> Path | None:
        """Return the folder under `root` that holds the four files, if any."""
        folders = (root / self.original / "raw", root / self.name)
        return next((folder for folder in folders if _files_in(folder)), None)

    def read(self, place: Path) -> Arrays:
        """Read the arrays from the four IDX files in the folder `place`."""
        train_images, train_labels, test_images, test_labels = (
            read_idx(file.read_bytes(), str(file)) for file in _files_in(place)
        )
        return {
            "images": _join([train_images, test_images], 3, place)[:, None],
            "labels": _join([train_labels, test_labels], 1, place),
            "classes": np.array(self.class_names),
            "test": split_mask(len(train_images), len(test_images)),
        }

    def fetch(self, folder: Path) -> None:
        """Download the four files into ``folder``."""
        torchvision_class(self.original)(str(folder), download=True)


def read_idx(content: bytes, where: str) -> NDArray[np.uint8]:
    """Read an IDX array of unsigned bytes (MNIST's format), gzipped or plain.

    Returns:
        A read-only uint8 array of the shape that the file states.
    """
    if content.startswith(_GZIP_MAGIC):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"{where} is not a whole gzip file ({error}): get it again") from error
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UINT8:
        raise UsageError(f"{where} is not an IDX file of unsigned bytes: get it again")
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise UsageError(
            f"{where} has {len(content)} bytes, but its header states "
            f"{start + math.prod(shape)}: get it again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _files_in(folder: Path) -> list[Path]:
    """Return the paths of the four IDX files in `folder`; an empty list if one is missing."""
    candidates = [(folder / name, folder / f"{name}.gz") for name in _FILES]
    found = [next((file for file in pair if file.is_file()), None) for pair in candidates]
    return [file for file in found if file is not None] if all(found) else []


def _join(parts: Sequence[NDArray[np.uint8]], dimensions: int, place: Path) -> NDArray[np.uint8]:
    if any(part.ndim != dimensions or part.shape[1:] != parts[0].shape[1:] for part in parts):
        shapes = " and ".join(str(part.shape) for part in parts)
        raise UsageError(f"{place}: train and test do not go together, with shapes {shapes}")
    return np.concatenate(parts)


MNIST = IdxSet("mnist", 70_000, 10, (1, 28, 28), "MNIST", tuple(str(digit) for digit in range(10)))
FASHION_MNIST = IdxSet(
    "fashion-mnist",
    70_000,
    10,
    (1, 28, 28),
    "FashionMNIST",
    (
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ),
)
