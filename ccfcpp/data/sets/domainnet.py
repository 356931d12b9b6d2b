"""Lists of each client's training and test images, as DomainNet has them beside its folders.

DomainNet itself is downloaded by the user, and read as a folder.
"""

from collections.abc import Sequence
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.data.file_tree import ImageFile, Tree

_SPLITS = ("train", "test")


def find_lists(tree: Tree, folder: Path, owners: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the list files of training and test images by client's folder; empty if none exist.

    ``folder`` contains the clients' folders ``owners`` and their list files.
    """
    there = {canonical(path.name): path for path in tree.others[folder]}
    names = {owner: [f"{owner.name}_{split}.txt" for split in _SPLITS] for owner in owners}
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


def select_listed(
    tree: Tree,
    folder: Path,
    files: Sequence[ImageFile],
    lists: Sequence[Path],
    classes: Sequence[str] | None,
) -> list[ImageFile]:
    """Select a client's files that its lists name, with their split, training images first.

    Paths in the lists start from `folder`. Only listed images of the `classes` must exist.
    """
    # Systems differ in the Unicode form of names.
    there = {canonical(str(file.path)): file.path for file in files}
    kept_classes = set(map(canonical, classes or ()))
    is_test = {}
    for split, path in zip(_SPLITS, lists, strict=True):
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
