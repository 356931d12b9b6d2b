"""Common parts of published data sets: their place on disk, and their download.

The layout on disk is torchvision's if it has the data set: a folder that torchvision filled can
be used, and the other way round. Addresses and checksums are torchvision's, too. It is imported for
a download only, since importing it takes longer than reading most data sets.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
import socket
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.data.archives import unpack_archive
from ccfcpp.data.cache import Arrays
from ccfcpp.data.registry import DataSet

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData

_FAULTS = (OSError, RuntimeError, http.client.HTTPException)
"""Errors of a failed download."""
_SILENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Published(DataSet, ABC):
    """Base class of data sets that are downloaded into the data sets' folder if missing."""

    @property
    @abstractmethod
    def expected(self) -> str:
        """Description of the files that the data sets' folder must hold."""

    @abstractmethod
    def find(self, root: Path) -> Path | None:
        """Return the folder or the archive under `root` that holds the data set, if any."""

    @abstractmethod
    def read(self, place: Path) -> Arrays:
        """Read the data set from the folder or archive that `find` returned.

        Returns:
            `images`, uint8 `(samples, channels, height, width)`, `labels`, integers `(samples,)`,
            `classes`, their names, and `test`, bool `(samples,)`.

        Raises:
            UsageError: If the files there are broken; the message names the file.
        """

    @abstractmethod
    def fetch(self, folder: Path) -> None:
        """Download the data set into `folder`, where `find` can find it, and check the MD5."""

    def place(self, root: Path) -> str:
        """Describe where under `root` the data set is found."""
        place = self.find(root)
        return f"to be downloaded to {root}" if place is None else str(place)

    def load(self, root: Path) -> ImageData:
        """Read the data set from under `root`; if it is missing, download it there first.

        Raises:
            UsageError: If it can be neither found nor downloaded, or its files are broken.
        """
        place = self.find(root)
        if place is None:
            self._download(root)
            place = self.find(root)
        assert place is not None
        return _make_image_data(self.name, self.read(place), place)

    def _download(self, root: Path) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            # Moved when complete: an interrupted download must not look like a data set.
            with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as temporary:
                with _limit_download():
                    self.fetch(Path(temporary))
                shutil.copytree(temporary, root, copy_function=shutil.move, dirs_exist_ok=True)
        except _FAULTS as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UsageError(
                f"data set '{self.name}' is not in {root} and cannot be downloaded ({reason}): "
                f"put {self.expected} into {root}, or use 'digits', which works offline"
            ) from error


@dataclass(frozen=True)
class Packed(Published):
    """Base class of data sets that are published as one archive.

    Attributes:
        folder: The name of the top folder in the archive.
        archive: The name of the archive.
        members: Names of the files that the unpacked folder must hold.
        more_archives: Glob patterns that the archive's name may also match.
    """

    folder: str
    archive: str
    members: tuple[str, ...]
    more_archives: ClassVar[tuple[str, ...]] = ()

    @property
    def expected(self) -> str:
        """Description of the files that the data sets' folder must hold."""
        return f"{self.archive} (or its unpacked folder {self.folder}/)"

    def find(self, root: Path) -> Path | None:
        """Return the unpacked folder under the root, else an archive; None if there is neither.

        Both may lie in the root, or in its subfolder with the data set's name, which may also be
        the unpacked folder itself.
        """
        bases = (root, root / self.name)
        for unpacked in [*(base / self.folder for base in bases), root / self.name]:
            if all((unpacked / member).is_file() for member in self.members):
                return unpacked
        archives = (
            path
            for pattern in (self.archive, *self.more_archives)
            for base in bases
            for path in sorted(base.glob(pattern))
        )
        return next((path for path in archives if path.is_file()), None)


Contents = dict[str, bytes]
"""Contents of an archive's members, by name."""


@dataclass(frozen=True)
class BinarySet(Packed):
    """Data set published as an archive of a few binary files.

    Attributes:
        original: The name of torchvision's class of the data set.
        decode: Decodes the files' contents, by name, to the arrays of `Published.read`; takes also
            the path that messages name, and raises `UsageError` if the contents are broken.
    """

    original: str
    decode: Callable[[Contents, Path], Arrays]

    def read(self, place: Path) -> Arrays:
        """Read the data set from its unpacked folder or its archive."""
        if place.is_dir():
            return self.decode(self._contents(place, place), place)
        with unpack_archive(place, self.members) as unpacked:
            contents = self._contents(unpacked.root / self.folder, place / self.folder)
        return self.decode(contents, place)

    def fetch(self, folder: Path) -> None:
        """Download the archive into ``folder``, and check its MD5."""
        from torchvision.datasets.utils import download_url

        original = torchvision_class(self.original)
        download_url(original.url, str(folder), self.archive, original.tgz_md5)

    def _contents(self, folder: Path, place: Path) -> Contents:
        """Return the contents of ``members`` in a folder, by name; messages call it ``place``."""
        try:
            return {name: (folder / name).read_bytes() for name in self.members}
        except FileNotFoundError as error:
            missing = place / Path(error.filename).name
            raise UsageError(f"{missing} is not there: get it again") from error


def torchvision_class(name: str) -> Any:
    """Return torchvision's class of a data set, for its addresses and checksums."""
    from torchvision import datasets

    return getattr(datasets, name)


def split_mask(train: int, test: int) -> NDArray[np.bool_]:
    """Return the mask of test images: `train` times False, then `test` times True."""
    return np.repeat([False, True], [train, test])


def _make_image_data(name: str, arrays: Arrays, place: Path) -> ImageData:
    import torch

    from ccfcpp.data.images import ImageData

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
def _limit_download() -> Iterator[None]:
    """Silence torchvision's output, and set a timeout for its downloads."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SILENCE_SECONDS)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        socket.setdefaulttimeout(before)
