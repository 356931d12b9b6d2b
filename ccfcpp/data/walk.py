"""The image files of a folder or an archive, at any depth."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ccfcpp.core.kinds import IMAGE_SUFFIXES
from ccfcpp.data.archives import Tree
from ccfcpp.data.decoding import HEAD, UNREAD, looks_like_image


@dataclass
class Walk:
    """What lies in a tree; hidden files and folders do not show.

    Attributes:
        tree: The folder or the archive.
        folders: Folders in each folder, sorted.
        images: Image files in each folder, sorted: those with a suffix of images, and those that
            begin as images do.
        others: Other files in each folder, sorted.
    """

    tree: Tree
    folders: dict[Path, list[Path]] = field(default_factory=dict)
    images: dict[Path, list[Path]] = field(default_factory=dict)
    others: dict[Path, list[Path]] = field(default_factory=dict)

    def below(self, folder: Path) -> Iterator[Path]:
        """Yield the images of a folder: its own first, then those of each folder in it."""
        yield from self.images[folder]
        for inner in self.folders[folder]:
            yield from self.below(inner)

    def name(self, file: Path) -> str:
        """Return a path below the root, with slashes."""
        return file.relative_to(self.tree.root).as_posix()


def walk(tree: Tree) -> Walk:
    """Look through a folder or an archive.

    Links to folders are followed, but for those that lead back up.
    """
    found = Walk(tree)
    _look(found, tree.root, [tree.root.resolve()])
    return found


def _look(found: Walk, folder: Path, above: list[Path]) -> None:
    folders, files = found.tree.entries(folder)
    found.folders[folder] = []
    found.images[folder], found.others[folder] = [], []
    for file in files:
        kind = found.images if _is_image(found.tree, file) else found.others
        kind[folder].append(file)
    for inner in folders:
        real = inner.resolve() if inner.is_symlink() else above[-1] / inner.name
        if not any(each.is_relative_to(real) for each in above):
            found.folders[folder].append(inner)
            _look(found, inner, [*above, real])


def _is_image(tree: Tree, file: Path) -> bool:
    name = file.name.lower()
    return name.endswith((*IMAGE_SUFFIXES, *UNREAD)) or looks_like_image(tree.head(file, HEAD))
