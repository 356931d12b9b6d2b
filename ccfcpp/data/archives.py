"""Unpacking of archives, each once, into the cache.

Neither a member's name nor a link can lead out of the folder.
"""

import errno
import gzip
import json
import lzma
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import IO, NamedTuple, Self

from ccfcpp.core.errors import UsageError
from ccfcpp.data.cache import cached_folder

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
"""Suffixes of archives' names, in lower case."""
NO_FILE = "it is neither a file nor a folder"
"""Reason why a pipe, a socket or a device is not read."""

_GZIP_MAGIC = b"\x1f\x8b"
_MOST_BYTES, _FEW_BYTES, _MOST_INFLATED = 50 << 30, 1 << 30, 100
"""Limits against zip bombs: an archive may unpack to 50 GiB at most, and beyond 1 GiB only to 100
times its own size."""
_LONGEST_LINK = 4096
_FAULTS = (
    *(OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError),
    *(tarfile.TarError, zipfile.BadZipFile),
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_NAMES = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""Errors of a full disk, and of names that a disk cannot have."""
_ZIP_UTF8 = 0x800
_REPLACED = "another one of this name follows"
_FILES, _FACTS = "files", "facts.json"


def is_archive(path: Path) -> bool:
    """Return whether the file's name has the suffix of an archive that `unpack_archive` reads."""
    return path.name.lower().endswith(ARCHIVE_SUFFIXES)


def without_suffix(path: Path) -> str:
    """Return the name of an archive without its suffix."""
    suffix = max((s for s in ARCHIVE_SUFFIXES if path.name.lower().endswith(s)), key=len)
    return path.name[: -len(suffix)]


class Unpacked(NamedTuple):
    """Folder of an unpacked archive, and the archive's members that it lacks.

    Attributes:
        root: The folder on disk.
        reasons: Why files are not read, by their paths below the root, with slashes.
        lost: Names of the archive's members that are missing on disk, each with the reason.
        hidden: Paths of members that would lead out of the folder, cut after the first `..`.
    """

    root: Path
    reasons: Mapping[str, str] = {}
    lost: Sequence[tuple[str, str]] = ()
    hidden: Sequence[str] = ()


@contextmanager
def unpack_archive(archive: Path, only: Sequence[str] = ()) -> Iterator[Unpacked]:
    """Unpack a `.zip`, `.tar` or `.tar.gz` into the cache, if not yet there; yield its folder.

    Args:
        archive: The archive.
        only: Names of the files to unpack, without their folders; if empty, all files.

    Raises:
        UsageError: If the archive is broken, or larger than may be unpacked.
    """

    def unpack(folder: Path) -> None:
        unpacking = _Unpacking(archive, folder / _FILES, only)
        try:
            is_zip = archive.name.lower().endswith(".zip")
            (unpacking.add_zip if is_zip else unpacking.add_tar)()
        except _FAULTS as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise UsageError(
                    f"{archive} cannot be unpacked to {folder.parent} ({error.strerror}): make "
                    "room there, or name another folder by $CCFCPP_CACHE"
                ) from error
            raise UsageError(_damage_message(archive, error)) from error
        unpacking.add_links()
        facts = {
            "reasons": unpacking.reasons,
            "lost": unpacking.lost,
            "hidden": sorted(unpacking.hidden),
        }
        (folder / _FACTS).write_text(json.dumps(facts))

    with cached_folder([archive], f"unpacked {only}", unpack) as folder:
        yield Unpacked(folder / _FILES, **json.loads((folder / _FACTS).read_text()))


class _Unpacking:
    """Unpacker of one archive into a new folder; it collects what cannot be unpacked."""

    def __init__(self, archive: Path, root: Path, only: Sequence[str]) -> None:
        self.archive, self.root, self.only = archive, root, only
        self.reasons: dict[str, str] = {}
        self.lost: list[tuple[str, str]] = []
        self.hidden: set[str] = set()
        self._links: dict[Path, str] = {}
        inflated = max(_FEW_BYTES, archive.stat().st_size * _MOST_INFLATED)
        self._most = self._left = min(_MOST_BYTES, inflated)
        root.mkdir()

    def add_zip(self) -> None:
        """Unpack a `.zip`, and record damaged members in `reasons`."""
        with zipfile.ZipFile(self.archive) as file:
            for info in file.infolist():
                name = info.filename
                if not info.flag_bits & _ZIP_UTF8:
                    with suppress(UnicodeError):  # macOS writes UTF-8 and does not say so
                        name = name.encode("cp437").decode()
                is_folder = name.endswith(("/", "\\"))
                if (path := self._prepare_path(name, is_folder)) and not is_folder:
                    self._add_zipped(file, info, path)

    def _add_zipped(self, file: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
        try:
            if stat.S_ISLNK(info.external_attr >> 16) and info.file_size < _LONGEST_LINK:
                self._add_link(path, file.read(info).decode())
            else:
                with file.open(info) as member:
                    self._write(path, info.file_size, member)
        except (*_FAULTS, UnicodeError) as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                raise
            self._add_unread(path, _damage_message(self.archive / self._name(path), error))

    def add_tar(self) -> None:
        """Unpack a `.tar`, which may be compressed, in one pass from front to back."""
        with _open_decompressed(self.archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Header) as tar:
                for info in tar:
                    path = self._prepare_path(info.name, info.isdir())
                    if path is None or info.isdir():
                        continue
                    if info.issym():
                        self._add_link(path, info.linkname)
                    elif info.islnk():
                        self._add_hard_link(path, info.linkname)
                    elif member := tar.extractfile(info):
                        self._write(path, info.size, member)
                    else:
                        self._add_unread(path, NO_FILE)
            # Read to the end: only there does gzip notice that the archive was cut.
            while stream.read(1 << 20):
                pass

    def _write(self, path: Path, size: int, member: IO[bytes]) -> None:
        self._left -= size
        if self._left < 0:
            raise UsageError(
                f"{self.archive} holds more than the {self._most} bytes that may be unpacked: "
                "unpack it yourself, and give the folder"
            )
        with path.open("wb") as file:
            # A member may hold more than it states.
            while size and (block := member.read(min(size, 1 << 20))):
                file.write(block)
                size -= len(block)

    def _add_unread(self, path: Path, reason: str) -> None:
        path.touch()
        self.reasons[self._name(path)] = reason

    def _add_link(self, path: Path, target: str) -> None:
        path.touch()  # links are made last, so that nothing is written through one
        self._links[path] = target

    def _add_hard_link(self, path: Path, target: str) -> None:
        """Write a hard link as a copy of its target; if that is not yet unpacked, record this."""
        parts = _split_path(target)
        there, is_there = self.root.joinpath(*parts), False
        with suppress(OSError):  # no disk can have such a name
            is_there = ".." not in parts and there.is_file()
        if not is_there:
            self._add_unread(path, broken_link_reason(target))
        else:
            with there.open("rb") as file:
                self._write(path, there.stat().st_size, file)

    def add_links(self) -> None:
        """Create the symbolic links; one that leads out of the folder becomes an empty file."""
        for path, target in self._links.items():
            path.unlink()
            try:
                path.symlink_to(target)
            except (OSError, ValueError) as error:  # no link can have such a target
                if isinstance(error, OSError) and error.errno in _FULL:
                    raise
                self._add_unread(path, broken_link_reason(target))
        root = self.root.resolve()
        for path, target in self._links.items():
            with suppress(OSError, RuntimeError):  # links in a circle, which lead nowhere
                if path.resolve().is_relative_to(root):
                    continue
                path.unlink()
                path.touch()
                self.reasons[self._name(path)] = broken_link_reason(target)

    def _prepare_path(self, name: str, is_folder: bool = False) -> Path | None:
        """Create a member's parent folders, and return its path on disk; None if it is left out."""
        parts = _split_path(name)
        if ".." in parts:
            self.hidden.add("/".join(parts[: parts.index("..") + 1]))
            return None
        if not parts or (self.only and parts[-1] not in self.only and not is_folder):
            return None
        path = self.root.joinpath(*parts)
        try:
            if "\0" in name:
                raise OSError(errno.EINVAL, "it has a byte 0")
            for number in range(1, len(parts) + is_folder):
                folder = self.root.joinpath(*parts[:number])
                self._remove(folder)
                folder.mkdir(exist_ok=True)
            if path.is_dir() and not is_folder:
                self.lost.append((self._name(path), _REPLACED))
                return None
            self._remove(path)
        except OSError as error:
            if error.errno not in _NO_NAMES:
                raise
            self.lost.append(("/".join(parts), f"the disk refuses its name ({error.strerror})"))
            return None
        return path

    def _remove(self, path: Path) -> None:
        """Remove a file that an earlier member of the same name has written; list it as lost."""
        if path.is_file():
            path.unlink()
            self._links.pop(path, None)
            self.reasons.pop(self._name(path), None)
            self.lost.append((self._name(path), _REPLACED))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def broken_link_reason(link: str | Path) -> str:
    """Return the text that says why a link without a readable target is not read."""
    return f"it is a link to {str(link)!a}, which leads to no file here"


def _split_path(name: str) -> list[str]:
    # Windows writes backslashes, and a drive in front.
    name = re.sub("^[A-Za-z]:(?=/)", "", name.replace("\\", "/"))
    return [part for part in name.split("/") if part not in ("", ".")]


class _Header(tarfile.TarInfo):
    """Header of a `.tar` member; a broken one raises an error, where tarfile would stop reading."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            if isinstance(error, tarfile.EOFHeaderError):  # type: ignore[attr-defined]
                raise
            raise tarfile.ReadError(str(error)) from error


def _open_decompressed(archive: Path) -> BufferedIOBase:
    with archive.open("rb") as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
    return gzip.open(archive) if is_gzip else archive.open("rb")


def _damage_message(path: Path, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"{path} cannot be read ({reason}): get it again"
