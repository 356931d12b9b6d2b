"""CIFAR-10 and CIFAR-100: batches of images in pickles."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ccfcpp.data.cache import Arrays
from ccfcpp.data.formats import read_cifar_batch, read_cifar_classes
from ccfcpp.data.sets.binary import BinarySet, Contents
from ccfcpp.data.sets.published import split_mask


@dataclass(frozen=True)
class Cifar(BinarySet):
    """Batches of training images, one of test images, and a file `meta` of class names."""

    train: tuple[str, ...]
    test: str
    meta: str
    labels_key: str
    names_key: str

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the files that are read."""
        return (*self.train, self.test, self.meta)

    def decode(self, contents: Contents, place: Path) -> Arrays:
        """Decode the batches, those for training first."""
        images, labels = zip(
            *(
                read_cifar_batch(contents[batch], self.labels_key, f"{place}: {batch}")
                for batch in (*self.train, self.test)
            ),
            strict=True,
        )
        names = read_cifar_classes(contents[self.meta], self.names_key, f"{place}: {self.meta}")
        return {
            "images": np.concatenate(images),
            "labels": np.concatenate(labels),
            "classes": np.array(names),
            "test": split_mask(sum(map(len, images[:-1])), len(images[-1])),
        }


CIFAR10 = Cifar(
    "cifar10",
    60_000,
    10,
    (3, 32, 32),
    original="CIFAR10",
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    labels_key="labels",
    names_key="label_names",
)
CIFAR100 = Cifar(
    "cifar100",
    60_000,
    100,
    (3, 32, 32),
    original="CIFAR100",
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    train=("train",),
    test="test",
    meta="meta",
    labels_key="fine_labels",
    names_key="fine_label_names",
)
