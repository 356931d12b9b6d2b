"""STL-10: its labelled images, in plain binary files."""

from pathlib import Path

import numpy as np

from ccfcpp.data.cache import Arrays
from ccfcpp.data.formats import read_stl10_images, read_stl10_labels
from ccfcpp.data.sets.binary import BinarySet, Contents
from ccfcpp.data.sets.published import split_mask

_IMAGES = ("train_X.bin", "test_X.bin")
_LABELS = ("train_y.bin", "test_y.bin")
_NAMES = "class_names.txt"


class Stl10(BinarySet):
    """Images and labels for training and for testing; the images without labels are left out."""

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the files that are read."""
        return (*_IMAGES, *_LABELS, _NAMES)

    def decode(self, contents: Contents, place: Path) -> Arrays:
        """Decode the files, those for training first."""
        images = [read_stl10_images(contents[file], f"{place}: {file}") for file in _IMAGES]
        labels = [read_stl10_labels(contents[file], f"{place}: {file}") for file in _LABELS]
        return {
            "images": np.concatenate(images),
            "labels": np.concatenate(labels),
            "classes": np.array(contents[_NAMES].decode("utf-8", "replace").split()),
            "test": split_mask(*map(len, images)),
        }


STL10 = Stl10(
    "stl10",
    13_000,
    10,
    (3, 96, 96),
    original="STL10",
    folder="stl10_binary",
    archive="stl10_binary.tar.gz",
)
