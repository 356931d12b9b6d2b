"""One interface to folders on disk and to archives of folders.

A file in an archive has the path that it would have if the archive were a folder of its name. No
archive is unpacked on disk, so no member's name can lead out of it.
"""

import gzip
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import NamedTuple, Self

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import NO_IMAGE
from ccfcpp.data.tree import NO_FILE, Folder, Tree, leads_nowhere

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
"""Suffixes of archives' names, in lower case."""

_HEAD = 512
"""Bytes that tell the kind of a file."""
_GZIP_MAGIC = b"\x1f\x8b"
# A few bytes of an archive can stand for a member without end.
_LARGEST_FILE = 1 << 29
_LARGEST_TAR = 1 << 33
_FAULTS = (
    *(OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError),
    *(tarfile.TarError, zipfile.BadZipFile),
)
_ZIP_UTF8 = 0x800
_MOST_LINKS = 40
"""Links on the way to a file, as on Linux."""


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
        yield Folder(path)
    elif path.name.lower().endswith(".zip"):
        try:
            file = zipfile.ZipFile(path)
        except _FAULTS as error:
            raise _broken(path, error) from error
        with file:
            yield _Archive(path, [_zip_member(path, file, info) for info in file.infolist()])
    else:
        yield _Archive(path, _tar_members(path, suffixes, by_head))


class _Member(NamedTuple):
    """Facts of a member of an archive.

    Attributes:
        name: With slashes.
        content: Returns the content of a file; None for all else.
        link: Where a symbolic link leads; empty for all else.
        is_folder: Whether it is a folder.
        fault: Why all else is not read.
    """

    name: str
    content: Callable[[], bytes] | None = None
    link: str = ""
    is_folder: bool = False
    fault: str = NO_FILE


class _Archive(Tree):
    """Folders as the members' names imply them, and the members' contents by name."""

    def __init__(self, root: Path, members: Iterable[_Member]) -> None:
        super().__init__(root)
        self._members: dict[Path, _Member] = {}
        self._folders: dict[Path, set[Path]] = {root: set()}
        for member in members:
            parts = _parts(member.name)
            path = root.joinpath(*parts)
            if member.is_folder:
                self._folders.setdefault(path, set())
            elif parts:
                if path in self._members:
                    self.replaced.append(path)
                self._members[path] = member
            while path != root:
                self._folders.setdefault(path.parent, set()).add(path)
                path = path.parent
        self._has_links = any(member.link for member in self._members.values())
        self.replaced.extend(sorted(self._members.keys() & self._folders.keys()))

    def _within(self, folder: Path) -> Iterator[tuple[str, bool, str]]:
        within = self._folders.get(self.real(folder))
        if within is None:
            raise FileNotFoundError(f"{folder} is not there")
        for path in within:
            real = self.real(path)
            is_folder, member = real in self._folders, self._members.get(real)
            if is_folder or (member and member.content):
                yield path.name, is_folder, ""
            else:
                fault = member.fault if member else leads_nowhere(self._members[path].link)
                yield path.name, False, fault

    def real(self, path: Path) -> Path:
        if not self._has_links:
            return path
        found, links = self.root, 0
        parts = list(reversed(path.relative_to(self.root).parts))
        while parts:
            part = parts.pop()
            if part == ".." and links:
                if found == self.root:  # out of the archive
                    return found.parent
                found = found.parent
                continue
            found /= part
            if (member := self._members.get(found)) and member.link:
                links += 1
                if links > _MOST_LINKS or member.link.startswith("/"):
                    return Path(member.link)
                parts.extend(reversed(_parts(member.link)))
                found = found.parent
        return found

    def _source(self, file: Path) -> BytesIO:
        member = self._members.get(self.real(file))
        if member is None or member.content is None:
            raise FileNotFoundError(f"{file} is not there")
        try:
            return BytesIO(member.content())
        except _FAULTS as error:
            raise _broken(file, error) from error


def _parts(name: str) -> list[str]:
    # As Windows writes folders, on a drive or on none.
    name = re.sub("^[A-Za-z]:(?=/)", "", name.replace("\\", "/"))
    return [part for part in name.split("/") if part not in ("", ".")]


def _zip_member(archive: Path, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    name = info.filename
    if not info.flag_bits & _ZIP_UTF8:
        with suppress(UnicodeError):  # macOS writes UTF-8 and does not say so
            name = name.encode("cp437").decode()
    if name.endswith(("/", "\\")):
        return _Member(name, is_folder=True)
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode) and info.file_size < _HEAD:
        with suppress(*_FAULTS, UnicodeError):
            return _Member(name, link=_zip_content(archive / name, file, info).decode())
    return _Member(name, partial(_zip_content, archive / name, file, info))


def _zip_content(path: Path, file: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    _check_size(path, info.file_size)
    with file.open(info) as member:
        # Without a number zipfile would inflate more than the stated size.
        return member.read(info.file_size)


class _Header(tarfile.TarInfo):
    """A member's header; a broken one is not taken for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            if isinstance(error, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise
            raise tarfile.ReadError(str(error)) from error


def _tar_members(
    archive: Path, suffixes: tuple[str, ...], by_head: Callable[[bytes], bool]
) -> list[_Member]:
    """Return what is in a tar, with the contents of the files that are to be read."""
    # All at once: a gzipped tar can be read from front to back only.
    members = list[_Member]()
    files = dict[tuple[str, ...], _Member]()
    total = 0
    try:
        with _unzipped(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as tar:
                for info in tar:
                    member = _Member(info.name, None, info.linkname, info.isdir())
                    if info.islnk():
                        # It has the content that its target has so far.
                        target = files.get(tuple(_parts(info.linkname)))
                        fault = leads_nowhere(info.linkname)
                        member = (target or _Member("", fault=fault))._replace(name=info.name)
                    elif file := None if info.issym() else tar.extractfile(info):
                        head = file.read(_HEAD)
                        member = _Member(info.name, fault=NO_IMAGE)
                        if info.name.lower().endswith(suffixes) or by_head(head):
                            total += info.size
                            _check_size(archive / info.name, info.size)
                            if total > _LARGEST_TAR:
                                raise UsageError(
                                    f"{archive} holds more than the {_LARGEST_TAR} bytes that can "
                                    "be read from a .tar: unpack it, or pack it as a .zip"
                                )
                            member = _Member(info.name, partial(bytes, head + file.read()))
                    members.append(member)
                    files[tuple(_parts(info.name))] = member
            # To the end: only there gzip notices that the archive was cut.
            while stream.read(1 << 20):
                pass
    except _FAULTS as error:
        raise _broken(archive, error) from error
    return members


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
