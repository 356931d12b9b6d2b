"""The files of a folder or of an unpacked archive, at any depth."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ccfcpp.core.data_kinds import IMAGE_SUFFIXES, NO_IMAGE, is_hidden
from ccfcpp.data.archives import NO_FILE, Unpacked, broken_link_reason, unpack_archive
from ccfcpp.data.decoding import HEAD, UNREAD, UnreadableError, looks_like_image
from ccfcpp.data.image_files import FileFacts


class ImageFile(NamedTuple):
    """Image file, with the class, client and split that its folders give it.

    Attributes:
        path: The file.
        folder: The folder that names its class; None without classes.
        owner: The name of its client.
        test: Whether it is a test image; None if training and test images are not split.
    """

    path: Path
    folder: Path | None
    owner: str | None = None
    test: bool | None = None

    @property
    def class_name(self) -> str | None:
        """The name of its class, as the folder spells it; None without a class."""
        return self.folder.name if self.folder else None

    @property
    def deeper(self) -> "ImageFile":
        """The same image file, with the next deeper folder on its path as its class."""
        assert self.folder is not None
        return self._replace(folder=self.folder / self.path.relative_to(self.folder).parts[0])


class Tree:
    """Listing of a folder or an archive, without hidden files and folders.

    Links to folders are followed, except those to a folder above. Paths are those that the user
    knows: in an archive they begin with the archive's path, as if it were a folder.

    Attributes:
        root: The path of the folder or the archive.
        folders: Folders in each folder, sorted.
        images: Image files in each folder, sorted: those with a suffix of images, and those whose
            first bytes are an image's.
        others: Other files in each folder, sorted.
    """

    def __init__(self, root: Path, disk: Unpacked) -> None:
        self.root, self._disk = root, disk
        self.folders: dict[Path, list[Path]] = {}
        self.images: dict[Path, list[Path]] = {}
        self.others: dict[Path, list[Path]] = {}
        self._hidden = [*disk.hidden]
        self._reasons = {root / name: reason for name, reason in disk.reasons.items()}
        self._scan(root, [disk.root.resolve()])

    def below(self, folder: Path) -> Iterator[Path]:
        """Yield all images below a folder: its own first, then those of each subfolder."""
        yield from self.images[folder]
        for inner in self.folders[folder]:
            yield from self.below(inner)

    def name(self, file: Path) -> str:
        """Return a file's path relative to the root, with slashes."""
        return file.relative_to(self.root).as_posix()

    def disk(self, file: Path) -> Path:
        """Return where a listed file is on disk: for an archive, in its unpacked folder.

        Raises:
            UnreadableError: The file has no content.
        """
        if reason := self._reasons.get(file):
            raise UnreadableError(reason)
        return self._disk_path(file)

    def disk_paths(self, files: Iterable[Path]) -> list[Path]:
        """Return where listed files are on disk, including files without content."""
        return list(map(self._disk_path, files))

    def _disk_path(self, path: Path) -> Path:
        return self._disk.root / path.relative_to(self.root)

    def text(self, file: Path) -> str:
        """Return the content of a text file; bytes that are not UTF-8 are replaced."""
        return self.disk(file).read_text("utf-8", "replace")

    def list_other_files(self, but: Collection[Path] = ()) -> list[FileFacts]:
        """Return records of files that are no images or could not be unpacked, except ``but``."""
        others = [file for files in self.others.values() for file in files if file not in but]
        reasons = [(self.name(file), self._reasons.get(file, NO_IMAGE)) for file in others]
        return [FileFacts(name, reason=reason) for name, reason in (*reasons, *self._disk.lost)]

    @property
    def hidden(self) -> list[str]:
        """Names of hidden files and folders, which are ignored."""
        return sorted(self._hidden)

    def _scan(self, folder: Path, above: list[Path]) -> None:
        self.folders[folder], self.images[folder], self.others[folder] = [], [], []
        with os.scandir(self._disk_path(folder)) as entries:
            in_order = sorted(entries, key=lambda entry: entry.name)
        for entry in in_order:
            path = folder / entry.name
            if is_hidden(entry.name):
                self._hidden.append(self.name(path))
            elif not _is_true(entry.is_dir):
                kind = self.images if self._is_image(path, entry) else self.others
                kind[folder].append(path)
            elif any(each.is_relative_to(Path(entry).resolve()) for each in above):
                self._reasons[path] = "it is a link to a folder above it"
                self.others[folder].append(path)
            else:
                self.folders[folder].append(path)
        for inner in self.folders[folder]:
            self._scan(inner, [*above, self._disk_path(inner).resolve()])

    def _is_image(self, path: Path, entry: os.DirEntry[str]) -> bool:
        """Return whether a file is an image; if it has no content, record the reason."""
        if not _is_true(entry.is_file):
            link = Path(entry).readlink() if entry.is_symlink() else None
            self._reasons[path] = broken_link_reason(link) if link else NO_FILE
        if entry.name.lower().endswith((*IMAGE_SUFFIXES, *UNREAD)):
            return True
        try:
            with self.disk(path).open("rb") as file:
                return looks_like_image(file.read(HEAD))
        except (UnreadableError, OSError) as error:
            self._reasons.setdefault(path, str(error))
            return False


@contextmanager
def open_tree(path: Path) -> Iterator[Tree]:
    """Yield the listing of a folder, or of an archive, which it unpacks first.

    Raises:
        UsageError: If the archive is broken, or larger than may be unpacked.
    """
    if path.is_dir():
        yield Tree(path, Unpacked(path))
        return
    with unpack_archive(path) as disk:
        yield Tree(path, disk)


def _is_true(test: Callable[[], bool]) -> bool:
    try:
        return test()
    except OSError:  # circular links, or links into a folder that may not be read
        return False
