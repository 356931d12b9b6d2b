"""Images from a folder of image files, or from an archive of such a folder.

Layouts, where `train/` and `test/` may each stand between the folder and the rest:

    folder/CLASS/IMAGE        labelled
    folder/IMAGE              unlabelled

and, when each top-level folder is a client, `folder/CLIENT/CLASS/IMAGE` or `folder/CLIENT/IMAGE`,
where `train/` and `test/` may stand below the client. Instead of these, two lists may lie beside
each client's folder, as DomainNet has them: `CLIENT_train.txt` and `CLIENT_test.txt`, with a line
`CLIENT/CLASS/IMAGE LABEL` for each image. Images in neither are left out, one in both is a test
image, and the labels in them are not used: a folder's name tells the class.

In an archive all this may lie inside one more folder. Everything is taken in the plain sorted order
of names ("10" before "2"), train before test. Hidden files and files that are not images are
ignored.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ccfcpp.core.errors import UsageError
from ccfcpp.data import archives
from ccfcpp.data.archives import Tree
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.decoding import SUFFIXES, decode_images
from ccfcpp.data.images import ImageData, check_classes

_SPLITS = ("train", "test")
_LIST_SUFFIX = ".txt"
_READ = (*SUFFIXES, _LIST_SUFFIX)
_ARRAYS = ("images", "labels", "classes", "owners", "owner_names", "test")


class _File(NamedTuple):
    path: Path
    class_name: str | None
    owner: str | None = None
    test: bool | None = None


def read_images(
    path: Path,
    *,
    image_size: int | None = None,
    folders_are_clients: bool = False,
    classes: Sequence[str] | None = None,
) -> ImageData:
    """Read a folder of images, or an archive of one, laid out as described above.

    Files are decoded once, as by `decode_images`, and then cached. The arguments are those of
    `load`.

    Returns:
        The images, with `owners` exactly if `folders_are_clients`, and with `test` exactly if there
        is a folder or a list of test images. A client that has neither beside one that has them
        holds training images. One that has no image of the `classes` is no owner.

    Raises:
        UsageError: If the layout is mixed or empty, an image or the archive is broken, or the sizes
            differ.
    """
    chosen = None if classes is None else sorted(set(classes))
    if path.is_dir():
        with archives.opened(path, _READ) as tree:
            files = _find(tree, folders_are_clients, chosen)
            arrays = cached(
                [file.path for file in files],
                f"folder image_size={image_size}",
                ("images",),
                lambda: _decoded(tree, files, image_size),
            )
        return _image_data(path.resolve().name, arrays | _facts(files))

    def decode() -> Arrays:
        with archives.opened(path, _READ) as tree:
            files = _find(tree, folders_are_clients, chosen)
            return _decoded(tree, files, image_size) | _facts(files)

    # An archive takes long to look through: the cache holds what its layout tells, too.
    options = json.dumps(["archive", image_size, folders_are_clients, chosen])
    return _image_data(archives.without_suffix(path), cached([path], options, _ARRAYS, decode))


def _decoded(tree: Tree, files: Sequence[_File], image_size: int | None) -> Arrays:
    paths = [file.path for file in files]
    return {"images": decode_images(paths, tree.source, image_size=image_size)}


def _find(tree: Tree, clients: bool, classes: Sequence[str] | None) -> list[_File]:
    """Return the files of the chosen classes, in order."""
    top = _top(tree, clients)
    files = _client_files(tree, top, classes) if clients else _files(tree, top)
    if len({file.class_name is None for file in files}) > 1:
        raise UsageError(
            f"{tree.root} is labelled in parts only: put all images into class folders"
        )
    if classes is None:
        return files
    known = sorted({file.class_name for file in files if file.class_name is not None})
    kept = check_classes(classes, known, str(tree.root))
    return [file for file in files if file.class_name in kept]


def _top(tree: Tree, clients: bool) -> Path:
    """Return the folder to begin with: in an archive the one that holds all others, if any."""
    folders, images = _entries(tree, tree.root)
    if tree.root.is_dir() or len(folders) != 1 or images:
        return tree.root
    (only,) = folders
    within, images = _entries(tree, only)
    is_client = clients and {folder.name for folder in within} <= set(_SPLITS)
    return tree.root if only.name in _SPLITS or images or not within or is_client else only


def _client_files(tree: Tree, folder: Path, classes: Sequence[str] | None) -> list[_File]:
    owners, images = _entries(tree, folder)
    if images:
        raise UsageError(
            f"{images[0]} belongs to no client: with folders as clients, "
            "put every image into a client's folder"
        )
    if not owners:
        raise UsageError(f"{folder} has no client folders")
    lists = _lists(tree, folder, owners)
    found: list[_File] = []
    for owner in owners:
        files = _files(tree, owner)
        if lists:
            files = _listed(tree, folder, files, lists[owner], classes)
        found.extend(file._replace(owner=owner.name) for file in files)
    if not found:
        raise UsageError(f"the lists in {folder} name no image: get them again")
    return found


def _lists(tree: Tree, folder: Path, owners: Sequence[Path]) -> dict[Path, list[Path]]:
    """Return the lists of each client's training and test images; empty where there are none."""
    lists = {
        owner: [folder / f"{owner.name}_{split}{_LIST_SUFFIX}" for split in _SPLITS]
        for owner in owners
    }
    there = set(tree.entries(folder)[1])
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


def _files(tree: Tree, folder: Path) -> list[_File]:
    folders, images = _entries(tree, folder)
    names = {sub.name for sub in folders}
    if not names or not names <= set(_SPLITS) or images:
        return _class_files(tree, folder)
    return [
        # Training images alone are all that there is: nothing was set apart.
        file._replace(test=split == "test" if "test" in names else None)
        for split in _SPLITS
        if split in names
        for file in _class_files(tree, folder / split)
    ]


def _class_files(tree: Tree, folder: Path) -> list[_File]:
    folders, images = _entries(tree, folder)
    if images and folders:
        raise UsageError(
            f"{folder} holds both images ({images[0].name}) and folders ({folders[0].name}): "
            "put all images into class folders, or none"
        )
    if not images and not folders:
        raise UsageError(f"{folder} holds no image ({' '.join(SUFFIXES)})")
    in_classes = [_File(path, sub.name) for sub in folders for path in _class_images(tree, sub)]
    return in_classes or [_File(path, None) for path in images]


def _class_images(tree: Tree, folder: Path) -> list[Path]:
    folders, images = _entries(tree, folder)
    if folders:
        raise UsageError(
            f"the class folder {folder} holds a folder ({folders[0].name}): images must lie in "
            "FOLDER/CLASS/, or in train/ and test/ with nothing beside them"
        )
    if not images:
        raise UsageError(f"the class folder {folder} holds no image ({' '.join(SUFFIXES)})")
    return images


def _entries(tree: Tree, folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sub-folders and the image files in `folder`, each sorted, none hidden."""
    folders, files = tree.entries(folder)
    return folders, [file for file in files if file.name.lower().endswith(SUFFIXES)]


def _facts(files: Sequence[_File]) -> Arrays:
    """Return what the layout tells of the images; an array is empty where it tells nothing."""
    classes, labels = _indices(file.class_name for file in files)
    owner_names, owners = _indices(file.owner for file in files)
    is_split = any(file.test is not None for file in files)
    test = np.array([bool(file.test) for file in files if is_split], np.bool_)
    arrays = (labels, classes, owners, owner_names, test)
    return dict(zip(_ARRAYS[1:], arrays, strict=True))


def _indices(names: Iterable[str | None]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    known = np.array([name for name in names if name is not None], np.str_)
    distinct, indices = np.unique(known, return_inverse=True)
    return distinct, indices.astype(np.int64)


def _image_data(name: str, arrays: Arrays) -> ImageData:
    def tensor(key: str) -> torch.Tensor | None:
        return torch.from_numpy(arrays[key]) if arrays[key].size else None

    return ImageData(
        name,
        torch.from_numpy(arrays["images"]),
        tensor("labels"),
        tuple(str(class_name) for class_name in arrays["classes"]),
        tensor("owners"),
        tuple(str(owner) for owner in arrays["owner_names"]),
        tensor("test"),
    )
