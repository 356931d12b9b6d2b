"""The named data sets: what is known of them, and where they lie.

To list or to describe them imports neither torch nor a library that has data sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.core.registry import Registry
from ccfcpp.data.places import root_folder

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData


@dataclass(frozen=True)
class DataSet:
    """A data set that can be asked for by its name.

    To add one, derive a class, make one object of it, and name the object in ``DATASETS``, or from
    an installed package in an entry point::

        [project.entry-points."ccfcpp.datasets"]
        my-set = "my_package.my_module:MY_SET"

    The module should import torch, and what else is slow, in ``load``.

    Attributes:
        name: The name by which it is asked for.
        images: The number of images, those for training and for testing together.
        classes: The number of classes.
        shape: Channels, height and width of an image.
    """

    name: str
    images: int
    classes: int
    shape: tuple[int, int, int]

    def place(self, root: Path) -> str:
        """Say where the data set lies, in words.

        Args:
            root: The folder of the named data sets.
        """
        raise NotImplementedError

    def load(self, root: Path) -> ImageData:
        """Read the data set, training images first.

        Args:
            root: The folder of the named data sets.

        Raises:
            UsageError: If it is missing or broken; the message is one line.
        """
        raise NotImplementedError


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


@dataclass(frozen=True)
class Description:
    """One row of the list of named data sets.

    Attributes:
        name: The name to ask for.
        images: The number of images.
        classes: The number of classes.
        shape: Channels, height and width of an image.
        place: Where it is, or where it would be downloaded to.
    """

    name: str
    images: int
    classes: int
    shape: tuple[int, int, int]
    place: str


def describe(data_root: Path | None = None) -> tuple[Description, ...]:
    """Describe every named data set, and say where under `data_root` (as in `load`) it lies.

    Raises:
        UsageError: If a data set that an installed package adds cannot be imported.
    """
    root = root_folder(data_root)
    return tuple(
        Description(name, it.images, it.classes, it.shape, it.place(root))
        for name, it in DATASETS.items()
    )
