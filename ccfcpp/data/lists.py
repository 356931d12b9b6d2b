"""Lists of a client's training and test images, as DomainNet has them beside its folders."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ccfcpp.core.errors import UsageError
from ccfcpp.core.names import canonical
from ccfcpp.data.tree import Tree
from ccfcpp.data.walk import Walk

SPLITS = ("train", "test")
LIST_SUFFIX = ".txt"


class File(NamedTuple):
    """An image.

    Attributes:
        path: Its file.
        folder: That of its class; None where it is in none.
        owner: The name of its client.
        test: Whether it is a test image; None where nothing says so.
    """

    path: Path
    folder: Path | None
    owner: str | None = None
    test: bool | None = None

    @property
    def class_name(self) -> str | None:
        """The name of its class, as it is written."""
        return self.folder.name if self.folder else None

    @property
    def deeper(self) -> "File":
        """The same with the folder in that of the class as its class."""
        assert self.folder is not None
        return self._replace(folder=self.folder / self.path.relative_to(self.folder).parts[0])


def lists_of(found: Walk, folder: Path, owners: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the lists of each client's training and test images; empty where there are none."""
    there = {canonical(path.name): path for path in found.others[folder]}
    names = {owner: [f"{owner.name}_{split}{LIST_SUFFIX}" for split in SPLITS] for owner in owners}
    lists = {
        owner: [there.get(canonical(name), folder / name) for name in own]
        for owner, own in names.items()
    }
    wanted = [path for paths in lists.values() for path in paths]
    missing = [path for path in wanted if path not in there.values()]
    if len(missing) == len(wanted):
        return {}
    if missing:
        raise UsageError(
            f"{missing[0]} is missing: where lists of images lie beside the clients' folders, "
            "every client needs one of its training and one of its test images"
        )
    return lists


def listed(
    tree: Tree,
    folder: Path,
    files: Sequence[File],
    lists: Sequence[Path],
    classes: Sequence[str] | None,
) -> list[File]:
    """Keep a client's files that are listed, those for training first.

    Paths in the lists start from `folder`. Only images of the `classes` need to be there.
    """
    # Systems spell the letters of names in several ways.
    there = {canonical(str(file.path)): file.path for file in files}
    kept_classes = set(map(canonical, classes or ()))
    is_test = {}
    for split, path in zip(SPLITS, lists, strict=True):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if not line.strip():
                continue
            name, _, label = line.strip().rpartition(" ")
            if not name or not label.isdecimal():
                raise UsageError(
                    f"{path}, line {number}: {line.strip()!r} is not of the form "
                    "'CLIENT/CLASS/IMAGE LABEL'"
                )
            file = folder / name
            if found := there.get(canonical(str(file))):
                is_test[found] = split == "test"
            elif classes is None or canonical(file.parent.name) in kept_classes:
                raise UsageError(
                    f"{path}, line {number}, names {file}, which is no image of this client: "
                    "get the images again, or take the line out"
                )
    kept = [file._replace(test=is_test[file.path]) for file in files if file.path in is_test]
    return sorted(kept, key=lambda file: bool(file.test))
