"""The named data sets, which can be listed without importing torch or a library of data sets."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.core.registry import Registry

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData


@dataclass(frozen=True)
class DataSet(ABC):
    """Base class of data sets that can be loaded by name.

    To add one, derive a class, make one object of it, and name the object in ``DATASETS``, or from
    an installed package in an entry point::

        [project.entry-points."ccfcpp.datasets"]
        my-set = "my_package.my_module:MY_SET"

    The library's own data sets import torch and other slow modules only in ``load``.

    Attributes:
        name: Its name in ``DATASETS`` and in reports.
        images: The number of images, those for training and for testing together.
        classes: The number of classes.
        shape: Channels, height and width of an image.
    """

    name: str
    images: int
    classes: int
    shape: tuple[int, int, int]

    @abstractmethod
    def place(self, root: Path) -> str:
        """Describe where the data set is found, given the data sets' folder `root`."""

    @abstractmethod
    def load(self, root: Path) -> ImageData:
        """Read the data set from the data sets' folder `root`, training images first.

        Raises:
            UsageError: If it is missing or broken; the message is one line.
        """


DATASETS: Registry[DataSet] = Registry(
    "ccfcpp.datasets",
    "data set",
    {
        "digits": "ccfcpp.data.sets.digits:DIGITS",
        "mnist": "ccfcpp.data.sets.mnist:MNIST",
        "fashion-mnist": "ccfcpp.data.sets.mnist:FASHION_MNIST",
        "cifar10": "ccfcpp.data.sets.cifar:CIFAR10",
        "cifar100": "ccfcpp.data.sets.cifar:CIFAR100",
        "stl10": "ccfcpp.data.sets.stl10:STL10",
        "tiny-imagenet": "ccfcpp.data.sets.tiny_imagenet:TINY_IMAGENET",
    },
    "ccfcpp.data.registry:DataSet",
)
"""The data sets that ``load`` knows by name."""


def user_folder() -> Path:
    """Return the user's cache folder: `$XDG_CACHE_HOME/ccfcpp`, or `~/.cache/ccfcpp`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ccfcpp"


def root_folder(data_root: Path | None) -> Path:
    """Return the data sets' folder: `data_root`, else `$CCFCPP_DATA`, else the user's `data`."""
    configured = data_root or os.environ.get("CCFCPP_DATA") or user_folder() / "data"
    return Path(configured).expanduser()


def describe(data_root: Path | None = None) -> dict[str, tuple[DataSet, str]]:
    """Return each named data set and a text that says where it is found, by name.

    `data_root` is as in `load`.

    Raises:
        UsageError: If a data set that an installed package adds cannot be imported.
    """
    root = root_folder(data_root)
    return {name: (data_set, data_set.place(root)) for name, data_set in DATASETS.items()}
