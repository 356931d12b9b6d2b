"""The image files of a folder or an archive, at any depth."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ccfcpp.core.kinds import IMAGE_SUFFIXES, NO_IMAGE
from ccfcpp.data.decoding import HEAD, UNREAD, looks_like_image
from ccfcpp.data.reading import FileFacts
from ccfcpp.data.tree import Tree


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

    def no_images(self, but: Collection[Path] = ()) -> list[FileFacts]:
        """Return what is known of all that is no image, without some files."""
        others = [file for files in self.others.values() for file in files if file not in but]
        reasons = [(file, self.tree.unread.get(file, NO_IMAGE)) for file in others]
        reasons += [(file, "another one of this name follows") for file in self.tree.replaced]
        return [FileFacts(self.name(file), reason=reason) for file, reason in reasons]

    @property
    def hidden(self) -> list[str]:
        """The names of what is hidden."""
        return sorted(map(self.name, self.tree.hidden))


def walk(tree: Tree) -> Walk:
    """Look through a folder or an archive.

    Links to folders are followed, but for those that lead back up.
    """
    found = Walk(tree)
    _look(found, tree.root, [tree.real(tree.root)])
    return found


def _look(found: Walk, folder: Path, above: list[Path]) -> None:
    folders, files = found.tree.entries(folder)
    found.folders[folder] = []
    found.images[folder], found.others[folder] = [], []
    for file in files:
        kind = found.images if _is_image(found.tree, file) else found.others
        kind[folder].append(file)
    for inner in folders:
        real = found.tree.real(inner)
        if any(each.is_relative_to(real) for each in above):
            found.tree.unread[inner] = "it is a link to a folder above it"
            found.others[folder].append(inner)
        else:
            found.folders[folder].append(inner)
            _look(found, inner, [*above, real])


def _is_image(tree: Tree, file: Path) -> bool:
    name = file.name.lower()
    return name.endswith((*IMAGE_SUFFIXES, *UNREAD)) or looks_like_image(tree.head(file, HEAD))
