"""Data sets published as one `.tar.gz` of a few binary files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.data.archives import unpack_archive
from ccfcpp.data.cache import Arrays
from ccfcpp.data.sets.published import Packed, torchvision_class

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
