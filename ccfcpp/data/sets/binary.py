"""Data sets published as one `.tar.gz` of a few binary files."""

import tarfile
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ccfcpp.core.errors import UsageError
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.sets.published import ARRAYS, Published, from_torchvision

Contents = dict[str, bytes]
"""The contents of the members by their names."""


@dataclass(frozen=True)
class BinarySet(Published, ABC):
    """A data set in a `.tar.gz`, read as it is or unpacked by someone else.

    The archive is never unpacked on disk: its members are read in one pass, which is slow enough to
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
        """The names of the files that are read."""

    @abstractmethod
    def decode(self, contents: Contents, place: Path) -> Arrays:
        """Decode the contents of the members.

        Args:
            contents: The contents by name.
            place: Where they come from, for messages.

        Returns:
            The arrays of `Published.read`.

        Raises:
            UsageError: If the contents are broken.
        """

    @property
    def expected(self) -> str:
        """What has to lie where under the root, in words."""
        return f"{self.archive} (or its unpacked folder {self.folder}/)"

    def find(self, root: Path) -> Path | None:
        """Return the unpacked folder or the archive under `root`, in this order, if any."""
        bases = (root, root / self.name)
        for folder in [*(base / self.folder for base in bases), root / self.name]:
            if all((folder / member).is_file() for member in self.members):
                return folder
        archives = (base / self.archive for base in bases)
        return next((archive for archive in archives if archive.is_file()), None)

    def read(self, place: Path) -> Arrays:
        """Read the data set from an unpacked folder or an archive."""
        if place.is_dir():
            contents = {name: (place / name).read_bytes() for name in self.members}
            return self.decode(contents, place)
        return cached([place], self.name, ARRAYS, lambda: self.decode(self._unpacked(place), place))

    def fetch(self, folder: Path) -> None:
        """Download the archive."""
        from torchvision.datasets.utils import download_url

        original = from_torchvision(self.original)
        download_url(original.url, str(folder), self.archive, original.tgz_md5)

    def _unpacked(self, archive: Path) -> Contents:
        wanted = {f"{self.folder}/{member}": member for member in self.members}
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
