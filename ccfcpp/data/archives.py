"""One interface to folders on disk and to archives of folders.

A file in an archive has the path that it would have if the archive were a folder of its name. No
archive is unpacked on disk, so no member's name can lead out of it.
"""

import gzip
import os
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BytesIO
from pathlib import Path

from ccfcpp.core.errors import UsageError

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
"""Suffixes of archives' names, in lower case."""

_HEAD = 512
"""Bytes that tell the kind of a file."""
_GZIP_MAGIC = b"\x1f\x8b"
# A few bytes of an archive can stand for a member without end.
_LARGEST_FILE = 1 << 29
_LARGEST_TAR = 1 << 33
_FAULTS = (OSError, EOFError, RuntimeError, tarfile.TarError, zipfile.BadZipFile, zlib.error)


class Tree(ABC):
    """Folders and files below a root; hidden ones, whose names begin with a dot, do not show.

    Attributes:
        root: The path of the folder or the archive.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @abstractmethod
    def entries(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Return the folders and the files in `folder`, each sorted by name.

        Raises:
            FileNotFoundError: If there is no such folder.
        """

    @abstractmethod
    def source(self, file: Path) -> Path | BytesIO:
        """Return the file on disk, or its content.

        Raises:
            FileNotFoundError: If an archive has no such file.
            UsageError: If an archive is damaged there.
        """

    def content(self, file: Path) -> bytes:
        """Return the content of a file; raises as `source` does."""
        source = self.source(file)
        return source.read_bytes() if isinstance(source, Path) else source.getvalue()

    def head(self, file: Path, count: int) -> bytes:
        """Return the first bytes of a file: empty where an archive is damaged there."""
        try:
            source = self.source(file)
        except UsageError:
            return b""
        if isinstance(source, BytesIO):
            return source.read(count)
        with source.open("rb") as opened_file:
            return opened_file.read(count)

    def text(self, file: Path) -> str:
        """Return the content of a text file; bytes that are no UTF-8 are replaced."""
        return self.content(file).decode("utf-8", "replace")


def is_archive(path: Path) -> bool:
    """Return whether the file's name is that of an archive that `opened` reads."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def without_suffix(path: Path) -> str:
    """Return the name of an archive without its suffix."""
    suffix = max((s for s in ARCHIVE_SUFFIXES if path.name.lower().endswith(s)), key=len)
    return path.name[: -len(suffix)]


@contextmanager
def opened(
    path: Path, suffixes: tuple[str, ...], by_head: Callable[[bytes], bool] = lambda head: False
) -> Iterator[Tree]:
    """Open a folder, a `.zip`, or a `.tar` that may be gzipped.

    Args:
        path: The folder or the archive.
        suffixes: Suffixes, in lower case, of the names of the files that are going to be read.
        by_head: Says of the first bytes of another file whether it is going to be read, too.

    Raises:
        UsageError: If the archive is broken, or larger than can be read.
    """
    if path.is_dir():
        yield _Folder(path)
    elif path.name.lower().endswith(".zip"):
        try:
            file = zipfile.ZipFile(path)
        except _FAULTS as error:
            raise _broken(path, error) from error
        with file:
            names = (info.filename for info in file.infolist() if not info.is_dir())
            yield _Archive(path, names, lambda name: _zip_content(path, file, name))
    else:
        contents = _tar_contents(path, suffixes, by_head)
        yield _Archive(path, contents, contents.__getitem__)


class _Folder(Tree):
    def entries(self, folder: Path) -> tuple[list[Path], list[Path]]:
        with os.scandir(folder) as entries:
            shown = sorted((e for e in entries if not e.name.startswith(".")), key=lambda e: e.name)
        folders = [Path(entry.path) for entry in shown if entry.is_dir()]
        return folders, [Path(entry.path) for entry in shown if entry.is_file()]

    def source(self, file: Path) -> Path:
        return file


class _Archive(Tree):
    """Folders as the members' names imply them, and the members' contents by name."""

    def __init__(
        self, root: Path, names: Iterable[str], content_of: Callable[[str], bytes]
    ) -> None:
        super().__init__(root)
        self._content_of = content_of
        self._names: dict[Path, str] = {}
        self._folders: dict[Path, set[Path]] = {root: set()}
        for name in names:
            parts = [part for part in name.split("/") if part not in ("", ".")]
            # ".." is hidden, too.
            if parts and not any(part.startswith(".") for part in parts):
                self._add(root.joinpath(*parts), name)

    def entries(self, folder: Path) -> tuple[list[Path], list[Path]]:
        if folder not in self._folders:
            raise FileNotFoundError(f"{folder} is not there")
        shown = sorted(self._folders[folder], key=lambda path: path.name)
        folders = [path for path in shown if path in self._folders]
        return folders, [path for path in shown if path in self._names]

    def source(self, file: Path) -> BytesIO:
        if file not in self._names:
            raise FileNotFoundError(f"{file} is not there")
        try:
            return BytesIO(self._content_of(self._names[file]))
        except _FAULTS as error:
            raise _broken(file, error) from error

    def _add(self, file: Path, name: str) -> None:
        self._names[file] = name
        child = file
        while child != self.root:
            siblings = self._folders.setdefault(child.parent, set())
            if child in siblings:
                return
            siblings.add(child)
            child = child.parent


def _zip_content(archive: Path, file: zipfile.ZipFile, name: str) -> bytes:
    info = file.getinfo(name)
    _check_size(archive / name, info.file_size)
    with file.open(info) as member:
        # Without a number zipfile would inflate more than the stated size.
        return member.read(info.file_size)


def _tar_contents(
    archive: Path, suffixes: tuple[str, ...], by_head: Callable[[bytes], bool]
) -> dict[str, bytes]:
    """Return every file in a tar; the content of one that is not to be read is left empty."""
    # All at once: a gzipped tar can be read from front to back only.
    contents = {}
    total = 0
    try:
        with _unzipped(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for info in tar:
                    if not info.isfile():
                        continue
                    file = tar.extractfile(info)
                    assert file is not None  # a file it is
                    head = file.read(_HEAD)
                    is_read = info.name.lower().endswith(suffixes) or by_head(head)
                    if is_read:
                        total += info.size
                        _check_size(archive / info.name, info.size)
                        if total > _LARGEST_TAR:
                            raise UsageError(
                                f"{archive} holds more than the {_LARGEST_TAR} bytes that can be "
                                "read from a .tar: unpack it and give the folder, or pack it as a "
                                ".zip"
                            )
                    contents[info.name] = head + file.read() if is_read else b""
            # To the end: only there gzip notices that the archive was cut.
            while stream.read(1 << 20):
                pass
    except _FAULTS as error:
        raise _broken(archive, error) from error
    return contents


@contextmanager
def _unzipped(archive: Path) -> Iterator[BufferedIOBase]:
    with archive.open("rb") as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
        file.seek(0)
        if not is_gzip:
            yield file
            return
        with gzip.open(file) as stream:
            yield stream


def _check_size(file: Path, size: int) -> None:
    if size > _LARGEST_FILE:
        raise UsageError(
            f"{file} has {size} bytes, but at most {_LARGEST_FILE} can be read: leave it out"
        )


def _broken(path: Path, error: Exception) -> UsageError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return UsageError(f"{path} cannot be read ({reason}): get it again")
