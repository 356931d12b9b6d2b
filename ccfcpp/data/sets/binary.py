"""Data sets published as one `.tar.gz` of a few binary files."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.data import archives
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.sets.published import ARRAYS, Published, find_packed, from_torchvision

Contents = dict[str, bytes]
"""The contents of the members by their names."""


@dataclass(frozen=True)
class BinarySet(Published, ABC):
    """A data set in a `.tar.gz`, read as it is or unpacked by someone else.

    The archive is never unpacked on disk: it is read from front to back, which is slow enough to
    cache the result. The unpacked files are about as quick to read as a cache would be.

    Attributes:
        original: The name of torchvision's class.
        folder: The folder in the archive that holds the members.
        archive: The name of the archive.
    """

    original: str
    folder: str
    archive: str

    @property
    @abstractmethod
    def members(self) -> tuple[str, ...]:
        """Names of the files that are read."""

    @abstractmethod
    def decode(self, contents: Contents, place: Path) -> Arrays:
        """Decode the contents of the members to the arrays of `Published.read`.

        Raises:
            UsageError: If the contents are broken; the message names `place`.
        """

    @property
    def expected(self) -> str:
        """The files that must be in the root folder, in words."""
        return f"{self.archive} (or its unpacked folder {self.folder}/)"

    def find(self, root: Path) -> Path | None:
        """Return the unpacked folder or the archive under `root`, in this order, if any."""
        return find_packed(root, self.name, self.folder, self.members, [self.archive])

    def read(self, place: Path) -> Arrays:
        """Read the data set from an unpacked folder or an archive."""
        if place.is_dir():
            return self.decode(self._contents(place, place), place)
        folder = place / self.folder
        return cached(
            [place], self.name, ARRAYS, lambda: self.decode(self._contents(place, folder), place)
        )

    def fetch(self, folder: Path) -> None:
        """Download the archive."""
        from torchvision.datasets.utils import download_url

        original = from_torchvision(self.original)
        download_url(original.url, str(folder), self.archive, original.tgz_md5)

    def _contents(self, place: Path, folder: Path) -> Contents:
        """Return the contents of the members, which lie in a folder of a place."""
        with archives.opened(place, tuple(name.lower() for name in self.members)) as tree:
            try:
                return {name: tree.content(folder / name) for name in self.members}
            except FileNotFoundError as error:
                raise UsageError(f"{error}: get it again") from error
