"""MNIST and Fashion-MNIST: four IDX files, each gzipped or plain."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.data.cache import Arrays
from ccfcpp.data.formats import read_idx
from ccfcpp.data.sets.published import FAULTS, Published, from_torchvision, split_mask

_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@dataclass(frozen=True)
class IdxSet(Published):
    """Images and labels for training, then for testing, in a file each.

    Attributes:
        original: The name of torchvision's class, and of the folder that it fills.
        class_names: The names of the classes.
    """

    original: str
    class_names: tuple[str, ...]

    @property
    def expected(self) -> str:
        """The files that must be in the root folder, in words."""
        return f"{', '.join(f'{file}.gz' for file in _FILES)} (in {self.name}/)"

    def find(self, root: Path) -> Path | None:
        """Return the folder under `root` that holds the four files, if any."""
        folders = (self._raw(root), root / self.name)
        return next((folder for folder in folders if _files_in(folder)), None)

    def read(self, place: Path) -> Arrays:
        """Read the four files in the folder `place`."""
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
        """Download the four files."""
        original = from_torchvision(self.original)
        for file, md5 in original.resources:
            _fetch_from_a_mirror(original.mirrors, file, md5, self._raw(folder))

    def _raw(self, root: Path) -> Path:
        return root / self.original / "raw"


def _fetch_from_a_mirror(mirrors: Sequence[str], file: str, md5: str, folder: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    errors = []
    for mirror in mirrors:
        try:
            download_and_extract_archive(mirror + file, str(folder), md5=md5, remove_finished=True)
        except FAULTS as error:
            errors.append(f"{mirror}: {error}")
        else:
            return
    raise RuntimeError("; ".join(errors))


def _files_in(folder: Path) -> list[Path]:
    """Return the four files in `folder`, or nothing if one is missing."""
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
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
)
