"""STL-10: its labelled images, in plain binary files; those without labels are left out."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.data.cache import Arrays
from ccfcpp.data.sets.published import BinarySet, Contents, split_mask

_SHAPE = (3, 96, 96)
_IMAGES = ("train_X.bin", "test_X.bin")
_LABELS = ("train_y.bin", "test_y.bin")
_NAMES = "class_names.txt"


def _decode(contents: Contents, place: Path) -> Arrays:
    images = [read_stl10_images(contents[file], f"{place}: {file}") for file in _IMAGES]
    labels = [read_stl10_labels(contents[file], f"{place}: {file}") for file in _LABELS]
    return {
        "images": np.concatenate(images),
        "labels": np.concatenate(labels),
        "classes": np.array(contents[_NAMES].decode("utf-8", "replace").split()),
        "test": split_mask(*map(len, images)),
    }


STL10 = BinarySet(
    "stl10",
    13_000,
    10,
    _SHAPE,
    original="STL10",
    folder="stl10_binary",
    archive="stl10_binary.tar.gz",
    members=(*_IMAGES, *_LABELS, _NAMES),
    decode=_decode,
)


def read_stl10_images(content: bytes, where: str) -> NDArray[np.uint8]:
    """Read the images of an STL-10 `_X.bin` file: planes of 96×96, column after column.

    Returns:
        A read-only uint8 array `(samples, 3, 96, 96)`.
    """
    if len(content) % math.prod(_SHAPE):
        raise UsageError(f"{where} does not hold whole images of 96x96: get it again")
    return np.frombuffer(content, np.uint8).reshape(-1, *_SHAPE).swapaxes(2, 3)


def read_stl10_labels(content: bytes, where: str) -> NDArray[np.int64]:
    """Read an STL-10 `_y.bin` file, which counts classes from 1, as int64 labels from 0."""
    labels = np.frombuffer(content, np.uint8).astype(np.int64) - 1
    if (labels < 0).any():
        raise UsageError(f"{where} has a label 0, but STL-10 counts from 1: get it again")
    return labels
