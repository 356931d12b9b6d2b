"""Layouts of folders of images, which decide classes, clients, and images for testing.

Layouts, where `train/` (or `training/`) and `test/` (or `testing/`) may each stand between the
folder and the rest:

    folder/CLASS/…/IMAGE        labelled
    folder/…/IMAGE              unlabelled, if images lie in the folder itself

and, when each top-level folder is a client, `folder/CLIENT/CLASS/…/IMAGE` or
`folder/CLIENT/…/IMAGE`, where `train/` and `test/` may stand below the client. Below a class, or
without classes, images may lie at any depth. Images are labelled only if all of them are. Instead
of the splits, two lists may lie beside each client's folder, as DomainNet has them:
`CLIENT_train.txt` and `CLIENT_test.txt`, with a line `CLIENT/CLASS/IMAGE LABEL` for each image.
Images in neither are left out, one in both is a test image, and the labels in them are not used:
the class is the folder's name.

All this may lie inside more folders, of which each holds nothing but the next. Names are compared
by `ccfcpp.core.name_matching`, and everything is in the plain sorted order of names ("10" before
"2"), train before test. Hidden files are ignored.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.data.file_tree import ImageFile, Tree
from ccfcpp.data.sets.domainnet import find_lists, select_listed

_SPLITS = {"train": False, "training": False, "test": True, "testing": True}
"""Folders, in lower case, that separate training from test images: whether it has the latter."""


class Layout(NamedTuple):
    """Images of a folder with their classes, clients and splits, and what else was found there.

    Attributes:
        files: The images of the chosen classes, in order.
        empty: Folders that should hold images and hold none.
        lists: Text files that list training or test images.
        notes: Remarks on the layout, a line each.
    """

    files: list[ImageFile]
    empty: list[Path]
    lists: set[Path]
    notes: tuple[str, ...] = ()


def assign_folders(tree: Tree, clients: bool, classes: Sequence[str] | None) -> Layout:
    """Assign a class, a client and a split to each image of a folder, in the layout's order.

    Raises:
        UsageError: The layout is mixed or empty, or there is no such class.
    """
    top = _find_top(tree, clients)
    empty: list[Path] = []
    lists: set[Path] = set()
    if clients:
        files = _client_files(tree, top, classes, empty, lists)
    else:
        files = _split_files(tree, top, empty)
    notes: tuple[str, ...] = ()
    if outside := next((file.path for file in files if file.folder is None), None):
        if tree.folders[outside.parent] or any(file.folder for file in files):
            notes = (f"no folder is a class, since {tree.name(outside)} lies in none of them",)
        files = [file._replace(folder=None) for file in files]
    while len({canonical(file.class_name or "") for file in files}) == 1 and all(
        file.folder not in (None, file.path.parent) for file in files
    ):
        files = [file.deeper for file in files]  # A common folder that is not a class.
    if classes is not None:
        known = sorted({name for file in files if (name := file.class_name)})
        kept = check_classes(classes, known, str(tree.root))
        files = [file for file in files if canonical(file.class_name or "") in kept]
    return Layout(files, empty, lists, notes)


def _find_top(tree: Tree, clients: bool) -> Path:
    """Return the top folder of the layout, below folders that hold only one folder."""
    root = top = tree.root
    while len(tree.folders[top]) == 1 and not tree.images[top]:
        (only,) = tree.folders[top]
        within, images = tree.folders[only], tree.images[only]
        is_client = clients and all(map(_is_split, within))
        if _is_split(only) or images or not within or is_client:
            break
        # Folders that hold images are a client's classes, except in the one folder of an archive.
        if clients and (top != root or root.is_dir()) and any(map(tree.images.get, within)):
            break
        top = only
    return top


def _client_files(
    tree: Tree, folder: Path, classes: Sequence[str] | None, empty: list[Path], lists: set[Path]
) -> list[ImageFile]:
    owners, images = tree.folders[folder], tree.images[folder]
    if images:
        raise UsageError(
            f"{images[0]} belongs to no client: with folders as clients, "
            "put every image into a client's folder"
        )
    if not owners:
        raise UsageError(f"{folder} has no client folders")
    by_owner = find_lists(tree, folder, owners)
    lists.update(path for paths in by_owner.values() for path in paths)
    files: list[ImageFile] = []
    for owner in owners:
        top = _find_client_top(tree, owner, owners)
        own = _split_files(tree, top, empty) if any(tree.below(owner)) else []
        if not own:
            empty.append(owner)
        if by_owner:
            own = select_listed(tree, folder, own, by_owner[owner], classes)
        files.extend(file._replace(owner=owner.name) for file in own)
    if not files and by_owner:
        raise UsageError(f"the lists in {folder} name no image: get them again")
    return files


def _find_client_top(tree: Tree, owner: Path, owners: Sequence[Path]) -> Path:
    """Return the folder of a client's classes; skip single folders that other clients lack."""

    def names_in(folder: Path) -> set[str]:
        subs = tree.folders[folder]
        below = [each for sub in subs if _is_split(sub) for each in tree.folders[sub]]
        return {canonical(sub.name) for sub in [*subs, *below]}

    known = set[str]().union(*(names_in(other) for other in owners if other != owner))
    top = owner

    def is_like_others(folder: Path) -> bool:
        return not known.isdisjoint(names_in(folder))

    while len(tree.folders[top]) == 1 and not tree.images[top] and not is_like_others(top):
        (top,) = tree.folders[top]
    return top if is_like_others(top) and not tree.images[top] else owner


def _is_split(folder: Path) -> bool:
    return folder.name.lower() in _SPLITS


def _split_files(tree: Tree, folder: Path, empty: list[Path]) -> list[ImageFile]:
    folders, images = tree.folders[folder], tree.images[folder]
    if not folders or not all(map(_is_split, folders)) or images:
        return _class_files(tree, folder, empty)
    has_test = {sub: _SPLITS[sub.name.lower()] for sub in folders}
    return [
        # With training images only, there is no split.
        file._replace(test=has_test[sub] if any(has_test.values()) else None)
        for sub in sorted(folders, key=lambda sub: has_test[sub])
        for file in _class_files(tree, sub, empty)
    ]


def _class_files(tree: Tree, folder: Path, empty: list[Path]) -> list[ImageFile]:
    folders = tree.folders[folder]
    if tree.images[folder] or not folders:
        return [ImageFile(path, None) for path in tree.below(folder)]
    files = []
    for sub in folders:
        if _is_split(sub) and tree.folders[sub]:
            other = next((each for each in folders if not _is_split(each)), sub)
            raise UsageError(
                f"{folder} holds {sub.name}/ and other folders ({other.name}, …): put train/ "
                "and test/ with nothing beside them, or rename them"
            )
        own = [ImageFile(path, sub) for path in tree.below(sub)]
        if not own:
            empty.append(sub)
        files.extend(own)
    return files


def check_classes(names: Sequence[str], known: Sequence[str], where: str) -> frozenset[str]:
    """Check that the chosen classes exist, and return their canonical names.

    ``where`` is the data's name in messages.

    Raises:
        UsageError: If no class is chosen, or one is not among the `known` ones.
    """
    if not names:
        raise UsageError(f"no class of {where} is chosen: name at least one, or leave classes out")
    if not known:
        raise UsageError(f"{where} has no classes to choose {names[0]!r} from: leave classes out")
    for name in names:
        if canonical(name) not in map(canonical, known):
            close = difflib.get_close_matches(name, known, n=3)
            some = f"take some of {', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else some
            raise UsageError(f"{where} has no class {name!r}: {hint}")
    return frozenset(map(canonical, names))
