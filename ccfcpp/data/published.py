"""Published data sets: where their files lie, how they are fetched, and how they are read.

Names of files, addresses and checksums are torchvision's where it has the data set, and so is the
layout on disk: a folder that torchvision filled can be used, and the other way round. Train and
test are joined in this order.
"""

import contextlib
import http.client
import json
import socket
import sys
import tarfile
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision import datasets
from torchvision.datasets import utils

from ccfcpp.core.errors import UsageError
from ccfcpp.data import formats, tiny_imagenet, trees
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.images import ImageData

Contents = dict[str, bytes]
Decode = Callable[[Contents, Path], Arrays]

_ARRAYS = ("images", "labels", "classes", "test")
_SILENCE_SECONDS = 30.0


class Published(ABC):
    """One published data set.

    Attributes:
        name: The name by which it is asked for.
        images: The number of images, train and test together.
        classes: The number of classes.
        shape: Channels, height and width of an image.
    """

    def __init__(self, name: str, images: int, classes: int, shape: tuple[int, int, int]) -> None:
        self.name = name
        self.images = images
        self.classes = classes
        self.shape = shape

    @property
    @abstractmethod
    def expected(self) -> str:
        """What has to lie where under the root, in words."""

    @abstractmethod
    def find(self, root: Path) -> Path | None:
        """Return the folder or the archive under `root` that holds the data set, if any."""

    @abstractmethod
    def read(self, place: Path) -> ImageData:
        """Read the data set from a place that `find` returned.

        Raises:
            UsageError: If the files there are broken; the message names the file.
        """

    @abstractmethod
    def _fetch(self, folder: Path) -> None:
        """Download into `folder`, laid out like the root, and check the MD5."""

    def load(self, root: Path) -> ImageData:
        """Read the data set from under `root`; where it is missing, download it there first.

        Raises:
            UsageError: If it can be neither found nor downloaded, or its files are broken.
        """
        place = self.find(root)
        if place is None:
            self._download(root)
            place = self.find(root)
        assert place is not None
        return self.read(place)

    def _download(self, root: Path) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            # Moved in place when whole: an interrupted download must not look like a data set.
            with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as temporary:
                with _quiet_and_impatient():
                    self._fetch(Path(temporary))
                _move_files(Path(temporary), root)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(
                f"data set '{self.name}' is not in {root} and cannot be downloaded ({reason}): "
                f"put {self.expected} into {root}, or use 'digits', which works offline"
            ) from error


class IdxSet(Published):
    """MNIST or Fashion-MNIST: four IDX files, each gzipped or plain."""

    def __init__(
        self, name: str, torchvision_class: Any, class_names: Sequence[str], images: int
    ) -> None:
        super().__init__(name, images, len(class_names), (1, 28, 28))
        self._of = torchvision_class
        self._class_names = tuple(class_names)

    @property
    def expected(self) -> str:
        """What has to lie where under the root, in words."""
        return f"{', '.join(file for file, _ in self._of.resources)} (in {self.name}/)"

    def find(self, root: Path) -> Path | None:
        """Return the folder under `root` that holds the four files, if any."""
        folders = (self._raw(root), root / self.name)
        return next((folder for folder in folders if self._files(folder)), None)

    def read(self, place: Path) -> ImageData:
        """Read the four files in the folder `place`."""
        train_images, train_labels, test_images, test_labels = (
            formats.read_idx(file.read_bytes(), str(file)) for file in self._files(place)
        )
        images = _join([train_images, test_images], 3, place)
        labels = _join([train_labels, test_labels], 1, place)
        arrays = {
            "images": images[:, None],
            "labels": labels,
            "classes": np.array(self._class_names),
            "test": _test_mask(len(train_images), len(test_images)),
        }
        return _image_data(self.name, arrays, place)

    def _fetch(self, folder: Path) -> None:
        for file, md5 in self._of.resources:
            self._fetch_from_a_mirror(file, md5, self._raw(folder))

    def _fetch_from_a_mirror(self, file: str, md5: str, folder: Path) -> None:
        errors = []
        for mirror in self._of.mirrors:
            try:
                utils.download_and_extract_archive(
                    mirror + file, str(folder), md5=md5, remove_finished=True
                )
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                errors.append(f"{mirror}: {error}")
            else:
                return
        raise RuntimeError("; ".join(errors))

    def _raw(self, root: Path) -> Path:
        return root / str(self._of.__name__) / "raw"

    def _files(self, folder: Path) -> list[Path]:
        """Return the four files in `folder`, or nothing if one is missing."""
        names = [Path(file).stem for file, _ in self._of.resources]
        candidates = [(folder / name, folder / f"{name}.gz") for name in names]
        found = [next((file for file in pair if file.is_file()), None) for pair in candidates]
        return [file for file in found if file is not None] if all(found) else []


class ArchiveSet(Published):
    """A data set published as one `.tar.gz`, read as it is or unpacked by someone else.

    The archive is never unpacked on disk: its members are read in one pass, which is slow enough to
    cache the result. The unpacked files are about as quick to read as a cache would be.
    """

    def __init__(
        self,
        name: str,
        torchvision_class: Any,
        members: Sequence[str],
        decode: Decode,
        images: int,
        classes: int,
        shape: tuple[int, int, int],
    ) -> None:
        super().__init__(name, images, classes, shape)
        self._of = torchvision_class
        self._members = tuple(members)
        self._decode = decode

    @property
    def expected(self) -> str:
        """What has to lie where under the root, in words."""
        return f"{self._of.filename} (or its unpacked folder {self._of.base_folder}/)"

    def find(self, root: Path) -> Path | None:
        """Return the unpacked folder or the archive under `root`, in this order, if any."""
        bases = (root, root / self.name)
        folders: list[Path] = [*(base / self._of.base_folder for base in bases), root / self.name]
        for folder in folders:
            if all((folder / member).is_file() for member in self._members):
                return folder
        archives: list[Path] = [base / self._of.filename for base in bases]
        return next((archive for archive in archives if archive.is_file()), None)

    def read(self, place: Path) -> ImageData:
        """Read the data set from an unpacked folder or an archive."""
        if place.is_dir():
            contents = {name: (place / name).read_bytes() for name in self._members}
            arrays = self._decode(contents, place)
        else:
            arrays = cached(
                [place],
                self.name,
                _ARRAYS,
                lambda: self._decode(self._unpacked(place), place),
            )
        return _image_data(self.name, arrays, place)

    def _fetch(self, folder: Path) -> None:
        utils.download_url(self._of.url, str(folder), self._of.filename, self._of.tgz_md5)

    def _unpacked(self, archive: Path) -> Contents:
        wanted = {f"{self._of.base_folder}/{member}": member for member in self._members}
        contents: Contents = {}
        try:
            # A stream ("|") is read once from front to back, and no further than needed.
            with tarfile.open(archive, "r|gz") as tar:
                for info in tar:
                    member = wanted.get(str(PurePosixPath(info.name)))  # without a leading "./"
                    file = tar.extractfile(info) if member and info.isfile() else None
                    if member and file:
                        contents[member] = file.read()
                    if len(contents) == len(wanted):
                        return contents
        except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
            raise UsageError(f"{archive} cannot be read ({error}): get it again") from error
        missing = ", ".join(sorted(set(wanted.values()) - set(contents)))
        raise UsageError(f"{archive} lacks {missing}: get it again")


class TinyImageNet(Published):
    """TinyImageNet: JPEG files in folders, in an archive or unpacked by someone else.

    Either is slow enough to cache the result, and no archive is unpacked on disk. A gzipped tar
    whose name begins as the original's may hold a part of the data set.
    """

    filename = "tiny-imagenet-200.zip"
    url = f"http://cs231n.stanford.edu/{filename}"
    md5 = "90528d7ca1a48142e341f4ef8d21d0de"

    @property
    def expected(self) -> str:
        """What has to lie where under the root, in words."""
        return f"{self.filename} (or its unpacked folder {tiny_imagenet.BASE}/)"

    def find(self, root: Path) -> Path | None:
        """Return the unpacked folder, the archive, or another archive, in this order, if any."""
        bases = (root, root / self.name)
        for folder in [*(base / tiny_imagenet.BASE for base in bases), root / self.name]:
            if (folder / tiny_imagenet.ORDER).is_file():
                return folder
        archives = [base / self.filename for base in bases]
        for base in bases:
            archives += sorted(base.glob(f"{tiny_imagenet.BASE}*.tar.gz"))
        return next((archive for archive in archives if archive.is_file()), None)

    def read(self, place: Path) -> ImageData:
        """Read the data set from an unpacked folder or an archive."""
        arrays = self._from_folder(place) if place.is_dir() else self._from_archive(place)
        return _image_data(self.name, arrays, place)

    def _from_archive(self, archive: Path) -> Arrays:
        def decode() -> Arrays:
            with trees.opened(archive, tiny_imagenet.READ) as tree:
                return tiny_imagenet.decode(tree, tiny_imagenet.find_files(tree))

        return cached([archive], self.name, _ARRAYS, decode)

    def _from_folder(self, folder: Path) -> Arrays:
        with trees.opened(folder, tiny_imagenet.READ) as tree:
            files = tiny_imagenet.find_files(tree)
            # The text files are read anyway; what they say of the images belongs to the key.
            said = json.dumps([self.name, files.labels, files.classes, files.train])
            return cached(files.images, said, _ARRAYS, lambda: tiny_imagenet.decode(tree, files))

    def _fetch(self, folder: Path) -> None:
        utils.download_url(self.url, str(folder), self.filename, self.md5)


def _cifar(name: str, torchvision_class: Any, label_key: str, classes: int) -> ArchiveSet:
    batches = [file for file, _ in [*torchvision_class.train_list, *torchvision_class.test_list]]
    train = len(torchvision_class.train_list)
    meta = torchvision_class.meta

    def decode(contents: Contents, place: Path) -> Arrays:
        read = [
            formats.read_cifar_batch(contents[batch], label_key, f"{place}: {batch}")
            for batch in batches
        ]
        where = f"{place}: {meta['filename']}"
        names = formats.read_cifar_classes(contents[meta["filename"]], meta["key"], where)
        images = [images for images, _ in read]
        return {
            "images": np.concatenate(images),
            "labels": np.concatenate([labels for _, labels in read]),
            "classes": np.array(names),
            "test": _test_mask(sum(map(len, images[:train])), sum(map(len, images[train:]))),
        }

    members = [*batches, meta["filename"]]
    return ArchiveSet(name, torchvision_class, members, decode, 60_000, classes, (3, 32, 32))


def _stl10() -> ArchiveSet:
    names = datasets.STL10.class_names_file
    splits = (("train_X.bin", "train_y.bin"), ("test_X.bin", "test_y.bin"))

    def decode(contents: Contents, place: Path) -> Arrays:
        images = [formats.read_stl10_images(contents[x], f"{place}: {x}") for x, _ in splits]
        labels = [formats.read_stl10_labels(contents[y], f"{place}: {y}") for _, y in splits]
        return {
            "images": np.concatenate(images),
            "labels": np.concatenate(labels),
            "classes": np.array(contents[names].decode("utf-8", "replace").split()),
            "test": _test_mask(*map(len, images)),
        }

    members = [*(member for split in splits for member in split), names]
    return ArchiveSet("stl10", datasets.STL10, members, decode, 13_000, 10, (3, 96, 96))


def _join(parts: Sequence[NDArray[np.uint8]], dimensions: int, place: Path) -> NDArray[np.uint8]:
    if any(part.ndim != dimensions or part.shape[1:] != parts[0].shape[1:] for part in parts):
        shapes = " and ".join(str(part.shape) for part in parts)
        raise UsageError(f"{place}: train and test do not go together, with shapes {shapes}")
    return np.concatenate(parts)


def _test_mask(train: int, test: int) -> NDArray[np.bool_]:
    return np.repeat([False, True], [train, test])


def _image_data(name: str, arrays: Arrays, place: Path) -> ImageData:
    try:
        return ImageData(
            name,
            torch.from_numpy(np.ascontiguousarray(arrays["images"])),
            torch.from_numpy(arrays["labels"].astype(np.int64)),
            tuple(str(class_name) for class_name in arrays["classes"]),
            test=torch.from_numpy(arrays["test"]),
        )
    except ValueError as error:
        raise UsageError(f"{place} does not hold '{name}': {error}") from error


@contextlib.contextmanager
def _quiet_and_impatient() -> Iterator[None]:
    """Keep torchvision off stdout, and give up on a server that stays silent."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)


def _move_files(source: Path, target: Path) -> None:
    for file in (path for path in source.rglob("*") if path.is_file()):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)


PUBLISHED: tuple[Published, ...] = (
    IdxSet("mnist", datasets.MNIST, [str(digit) for digit in range(10)], 70_000),
    IdxSet("fashion-mnist", datasets.FashionMNIST, datasets.FashionMNIST.classes, 70_000),
    _cifar("cifar10", datasets.CIFAR10, "labels", 10),
    _cifar("cifar100", datasets.CIFAR100, "fine_labels", 100),
    _stl10(),
    TinyImageNet("tiny-imagenet", 110_000, 200, (3, 64, 64)),
)
