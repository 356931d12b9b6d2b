"""Images from a folder of image files, or from an archive of such a folder.

Layouts, where `train/` and `test/` may each stand between the folder and the rest:

    folder/CLASS/…/IMAGE        labelled
    folder/…/IMAGE              unlabelled, where images lie in the folder itself

and, when each top-level folder is a client, `folder/CLIENT/CLASS/…/IMAGE` or
`folder/CLIENT/…/IMAGE`, where `train/` and `test/` may stand below the client. Below a class, or
without classes, images may lie at any depth. Images are labelled only if all of them are. Instead
of the splits, two lists may lie beside each client's folder, as DomainNet has them:
`CLIENT_train.txt` and `CLIENT_test.txt`, with a line `CLIENT/CLASS/IMAGE LABEL` for each image.
Images in neither are left out, one in both is a test image, and the labels in them are not used: a
folder's name tells the class.

In an archive all this may lie inside one more folder. Everything is taken in the plain sorted order
of names ("10" before "2"), train before test. Hidden files are ignored.
"""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.core.kinds import IMAGE_SUFFIXES
from ccfcpp.data import archives
from ccfcpp.data.archives import Tree
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.decoding import UNREAD, looks_like_image
from ccfcpp.data.images import ImageData, check_classes
from ccfcpp.data.reading import (
    Options,
    Reading,
    as_text,
    check_share,
    from_text,
    no_images,
    read_files,
    sizes_of,
)
from ccfcpp.data.vectors import VectorData
from ccfcpp.data.walk import Walk, walk

_SPLITS = ("train", "test")
_LIST_SUFFIX = ".txt"
_READ = (*IMAGE_SUFFIXES, *UNREAD, _LIST_SUFFIX)
_LAYOUT = ("labels", "classes", "owners", "owner_names", "test")


class _File(NamedTuple):
    path: Path
    class_name: str | None
    owner: str | None = None
    test: bool | None = None


class _Layout(NamedTuple):
    """What a layout tells.

    Attributes:
        files: The images of the chosen classes, in order.
        others: Files that are no images.
        empty: Folders that should hold images and hold none.
    """

    files: list[_File]
    others: list[Path]
    empty: list[Path]


def read_images(
    path: Path,
    *,
    how: Options = Options(),  # noqa: B008 - it cannot change
    folders_are_clients: bool = False,
    classes: Sequence[str] | None = None,
) -> ImageData:
    """Read images as `read_folder` does, without an encoder."""
    data = read_folder(path, how=how, folders_are_clients=folders_are_clients, classes=classes)
    assert isinstance(data, ImageData)
    return data


def read_folder(
    path: Path,
    *,
    how: Options = Options(),  # noqa: B008 - it cannot change
    folders_are_clients: bool = False,
    classes: Sequence[str] | None = None,
) -> ImageData | VectorData:
    """Read a folder of images, or an archive of one, laid out as described above.

    Files are decoded once, as by `read_files`, and then cached. An encoder, which keeps vectors
    itself, makes vectors of them.

    Args:
        path: The folder or the archive.
        how: How files are read.
        folders_are_clients: Whether each top-level folder is a client.
        classes: The names of the only classes to read; None reads all.

    Returns:
        The images, or vectors, with the names of their files, with `owners` exactly if
        `folders_are_clients`, and with `test` exactly if there is a folder or a list of test
        images. A client that has neither beside one that has them holds training images. One that
        has no image of the `classes` is no owner.

    Raises:
        UsageError: If the layout is mixed or empty, the archive is broken, or too many files
            cannot be read.
    """
    chosen = None if classes is None else sorted(set(classes))
    if path.is_dir():
        with archives.opened(path, _READ) as tree:
            found = walk(tree)
            layout = _laid_out(found, folders_are_clients, chosen)
            paths = [file.path for file in layout.files]
            decode = partial(_decoded, found, paths, how)
            kept = ("images", "files")
            arrays = decode() if how.encoder else cached(paths, f"folder {how.key}", kept, decode)
            arrays |= _facts(found, layout)
        return _image_data(path, path.resolve().name, arrays, how.skip)

    def decode_all() -> Arrays:
        with archives.opened(path, _READ, looks_like_image) as tree:
            found = walk(tree)
            layout = _laid_out(found, folders_are_clients, chosen)
            paths = [file.path for file in layout.files]
            return _decoded(found, paths, how) | _facts(found, layout)

    # An archive takes long to look through: the cache holds what its layout tells, too.
    options = json.dumps(["archive", how.key, folders_are_clients, chosen])
    names = ("images", "files", "others", "empty", *_LAYOUT)
    arrays = decode_all() if how.encoder else cached([path], options, names, decode_all)
    return _image_data(path, archives.without_suffix(path), arrays, how.skip)


def _decoded(found: Walk, paths: Sequence[Path], how: Options) -> Arrays:
    images, files = read_files(paths, [found.name(path) for path in paths], found.tree.source, how)
    return {"images": images, "files": as_text(files)}


def _laid_out(found: Walk, clients: bool, classes: Sequence[str] | None) -> _Layout:
    """Find the files of the chosen classes."""
    top = _top(found, clients)
    empty: list[Path] = []
    lists: set[Path] = set()
    if clients:
        files = _client_files(found, top, classes, empty, lists)
    else:
        files = _files(found, top, empty)
    if any(file.class_name is None for file in files):
        files = [file._replace(class_name=None) for file in files]
    if classes is not None:
        known = sorted({file.class_name for file in files if file.class_name is not None})
        kept = check_classes(classes, known, str(found.tree.root))
        files = [file for file in files if file.class_name in kept]
    others = [file for each in found.others.values() for file in each if file not in lists]
    return _Layout(files, others, empty)


def _top(found: Walk, clients: bool) -> Path:
    """Return the folder to begin with: in an archive the one that holds all others, if any."""
    root = found.tree.root
    folders = found.folders[root]
    if root.is_dir() or len(folders) != 1 or found.images[root]:
        return root
    (only,) = folders
    within, images = found.folders[only], found.images[only]
    is_client = clients and {folder.name for folder in within} <= set(_SPLITS)
    return root if only.name in _SPLITS or images or not within or is_client else only


def _client_files(
    found: Walk,
    folder: Path,
    classes: Sequence[str] | None,
    empty: list[Path],
    lists: set[Path],
) -> list[_File]:
    owners, images = found.folders[folder], found.images[folder]
    if images:
        raise UsageError(
            f"{images[0]} belongs to no client: with folders as clients, "
            "put every image into a client's folder"
        )
    if not owners:
        raise UsageError(f"{folder} has no client folders")
    by_owner = _lists(found, folder, owners)
    lists.update(path for paths in by_owner.values() for path in paths)
    files: list[_File] = []
    for owner in owners:
        own = _files(found, owner, empty) if any(found.below(owner)) else []
        if not own:
            empty.append(owner)
        if by_owner:
            own = _listed(found.tree, folder, own, by_owner[owner], classes)
        files.extend(file._replace(owner=owner.name) for file in own)
    if not files and by_owner:
        raise UsageError(f"the lists in {folder} name no image: get them again")
    return files


def _lists(found: Walk, folder: Path, owners: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the lists of each client's training and test images; empty where there are none."""
    lists = {
        owner: [folder / f"{owner.name}_{split}{_LIST_SUFFIX}" for split in _SPLITS]
        for owner in owners
    }
    there = set(found.others[folder])
    wanted = [path for paths in lists.values() for path in paths]
    missing = [path for path in wanted if path not in there]
    if len(missing) == len(wanted):
        return {}
    if missing:
        raise UsageError(
            f"{missing[0]} is missing: where lists of images lie beside the clients' folders, "
            "every client needs one of its training and one of its test images"
        )
    return lists


def _listed(
    tree: Tree,
    folder: Path,
    files: Sequence[_File],
    lists: Sequence[Path],
    classes: Sequence[str] | None,
) -> list[_File]:
    """Keep a client's files that are listed, those for training first.

    Paths in the lists start from `folder`. Only images of the `classes` need to be there.
    """
    there = {file.path: file.class_name for file in files}
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
            if file in there:
                is_test[file] = split == "test"
            elif classes is None or file.parent.name in classes:
                raise UsageError(
                    f"{path}, line {number}, names {file}, which is no image of this client: "
                    "get the images again, or take the line out"
                )
    kept = [file._replace(test=is_test[file.path]) for file in files if file.path in is_test]
    return sorted(kept, key=lambda file: bool(file.test))


def _files(found: Walk, folder: Path, empty: list[Path]) -> list[_File]:
    folders, images = found.folders[folder], found.images[folder]
    names = {sub.name for sub in folders}
    if not names or not names <= set(_SPLITS) or images:
        return _class_files(found, folder, empty)
    return [
        # Training images alone are all that there is: nothing was set apart.
        file._replace(test=split == "test" if "test" in names else None)
        for split in _SPLITS
        if split in names
        for file in _class_files(found, folder / split, empty)
    ]


def _class_files(found: Walk, folder: Path, empty: list[Path]) -> list[_File]:
    folders = found.folders[folder]
    if found.images[folder] or not folders:
        return [_File(path, None) for path in found.below(folder)]
    files = []
    for sub in folders:
        if sub.name in _SPLITS and found.folders[sub]:
            raise UsageError(
                f"{folder} holds {sub.name}/ and other folders ({folders[0].name}, …): put train/ "
                "and test/ with nothing beside them, or rename them"
            )
        own = [_File(path, sub.name) for path in found.below(sub)]
        if not own:
            empty.append(sub)
        files.extend(own)
    return files


def _facts(found: Walk, layout: _Layout) -> Arrays:
    """Return what the layout tells of the files; an array is empty where it tells nothing."""
    files = layout.files
    classes, labels = _indices(file.class_name for file in files)
    owner_names, owners = _indices(file.owner for file in files)
    is_split = any(file.test is not None for file in files)
    test = np.array([bool(file.test) for file in files if is_split], np.bool_)
    arrays = (labels, classes, owners, owner_names, test)
    others = no_images(map(found.name, layout.others))
    empty = np.array(json.dumps([found.name(path) for path in layout.empty]))
    return dict(zip(_LAYOUT, arrays, strict=True)) | {"others": as_text(others), "empty": empty}


def _indices(names: Iterable[str | None]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    known = np.array([name for name in names if name is not None], np.str_)
    distinct, indices = np.unique(known, return_inverse=True)
    return distinct, indices.astype(np.int64)


def _image_data(path: Path, name: str, arrays: Arrays, skip: float) -> ImageData | VectorData:
    files, others = from_text(arrays["files"]), from_text(arrays["others"])
    check_share(files, skip, path)
    read = np.array([not file.reason for file in files])

    def tensor(key: str) -> torch.Tensor | None:
        return torch.from_numpy(arrays[key][read]) if arrays[key].size else None

    labels, classes = _without_unused(tensor("labels"), arrays["classes"])
    owners, owner_names = _without_unused(tensor("owners"), arrays["owner_names"])
    values = torch.from_numpy(arrays["images"])
    names = tuple(file.name for file in files if not file.reason)
    reading = Reading((*files, *others), sizes_of(files), tuple(json.loads(str(arrays["empty"]))))
    facts = (name, values, labels, classes, owners, owner_names)
    if values.ndim == 2:
        return VectorData(*facts, names=names, reading=reading)
    return ImageData(*facts, tensor("test"), names, reading)


def _without_unused(
    indices: torch.Tensor | None, names: NDArray[np.generic]
) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Drop names of which no image is left, since their only images cannot be read."""
    if indices is None:
        return None, ()
    used, indices = torch.unique(indices, return_inverse=True)
    return indices, tuple(str(names[i]) for i in used.tolist())
