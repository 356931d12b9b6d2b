"""Folders and files below a root, on disk or elsewhere."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import is_hidden

NO_FILE = "it is neither a file nor a folder"
"""Why a pipe, a socket or a device is not read."""


class Tree(ABC):
    """Folders and files below a root, without hidden ones.

    Attributes:
        root: The path of the folder or the archive.
        hidden: What the folders that were looked at hold and do not show.
        unread: Why files have no content.
        replaced: Files of which an archive has other contents before the one that counts.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hidden: set[Path] = set()
        self.unread: dict[Path, str] = {}
        self.replaced: list[Path] = []

    def entries(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Return the folders and all else in `folder`, each sorted by name.

        Raises:
            FileNotFoundError: If there is no such folder.
        """
        folders, files = list[Path](), list[Path]()
        for name, is_folder, fault in sorted(self._within(folder)):
            path = folder / name
            if is_hidden(name):
                self.hidden.add(path)
            elif is_folder:
                folders.append(path)
            else:
                files.append(path)
                if fault:
                    self.unread[path] = fault
        return folders, files

    @abstractmethod
    def _within(self, folder: Path) -> Iterator[tuple[str, bool, str]]:
        """Yield names in a folder, whether they are folders, and why other ones are not read."""

    @abstractmethod
    def real(self, path: Path) -> Path:
        """Return a path without links; one that leads nowhere stays a path to nothing."""

    def source(self, file: Path) -> Path | BytesIO:
        """Return the file on disk, or its content.

        Raises:
            FileNotFoundError: If an archive has no such file.
            UsageError: If it has no content, or an archive is damaged there.
        """
        if file in self.unread:
            raise UsageError(self.unread[file])
        return self._source(file)

    @abstractmethod
    def _source(self, file: Path) -> Path | BytesIO: ...

    def content(self, file: Path) -> bytes:
        """Return the content of a file; raises as `source` does."""
        source = self.source(file)
        return source.read_bytes() if isinstance(source, Path) else source.getvalue()

    def head(self, file: Path, count: int) -> bytes:
        """Return the first bytes of a file: none where it cannot be read, which is noted."""
        try:
            source = self.source(file)
            if isinstance(source, BytesIO):
                return source.read(count)
            with source.open("rb") as opened_file:
                return opened_file.read(count)
        except (UsageError, OSError) as error:
            self.unread.setdefault(file, str(error))
            return b""

    def text(self, file: Path) -> str:
        """Return the content of a text file; bytes that are no UTF-8 are replaced."""
        return self.content(file).decode("utf-8", "replace")


class Folder(Tree):
    """A folder on disk."""

    def _within(self, folder: Path) -> Iterator[tuple[str, bool, str]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder, fault = _holds(entry.is_dir), ""
                if not is_folder and not _holds(entry.is_file):
                    link = Path(entry.path).readlink() if entry.is_symlink() else None
                    fault = leads_nowhere(link) if link else NO_FILE
                yield entry.name, is_folder, fault

    def real(self, path: Path) -> Path:
        """Return a path without links."""
        return path.resolve()

    def _source(self, file: Path) -> Path:
        return file


def _holds(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:  # links in a circle, or into a folder that may not be read
        return False


def leads_nowhere(link: str | Path) -> str:
    """Say why a link is not read."""
    return f"it is a link to {str(link)!a}, which leads to no file here"
