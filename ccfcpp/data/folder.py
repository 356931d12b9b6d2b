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

All this may lie inside more folders, of which each holds nothing but the next. Names are taken as
`ccfcpp.core.names` knows them, and everything is in the plain sorted order of names ("10" before
"2"), train before test. Hidden files are ignored.
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
from ccfcpp.core.names import called, canonical, spellings
from ccfcpp.data import archives
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.choosing import check_classes
from ccfcpp.data.decoding import UNREAD, looks_like_image
from ccfcpp.data.images import ImageData
from ccfcpp.data.lists import LIST_SUFFIX, SPLITS, File, listed, lists_of
from ccfcpp.data.reading import (
    FileFacts,
    Options,
    Reading,
    as_text,
    check_share,
    from_text,
    read_files,
    sizes_of,
)
from ccfcpp.data.vectors import VectorData
from ccfcpp.data.walk import Walk, walk

_READ = (*IMAGE_SUFFIXES, *UNREAD, LIST_SUFFIX)
_LAYOUT = ("labels", "classes", "owners", "owner_names", "test")


class _Layout(NamedTuple):
    """What a layout tells.

    Attributes:
        files: The images of the chosen classes, in order.
        others: What is known of files that are no images.
        empty: Folders that should hold images and hold none.
    """

    files: list[File]
    others: list[FileFacts]
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
    names = ("images", "files", "others", "said", *_LAYOUT)
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
    if any(file.folder is None for file in files):
        files = [file._replace(folder=None) for file in files]
    while len({canonical(file.class_name or "") for file in files}) == 1 and all(
        file.folder not in (None, file.path.parent) for file in files
    ):
        files = [file.deeper for file in files]  # One folder more: it tells nothing.
    if classes is not None:
        known = sorted({name for file in files if (name := file.class_name)})
        kept = check_classes(classes, known, str(found.tree.root))
        files = [file for file in files if canonical(file.class_name or "") in kept]
    return _Layout(files, found.no_images(lists), empty)


def _top(found: Walk, clients: bool) -> Path:
    """Return the folder to begin with: below those that hold nothing but the next."""
    root = top = found.tree.root
    while len(found.folders[top]) == 1 and not found.images[top]:
        (only,) = found.folders[top]
        within, images = found.folders[only], found.images[only]
        is_client = clients and all(map(_is_split, within))
        if _is_split(only) or images or not within or is_client:
            break
        # A client's classes hold images. An archive, though, may well hold the folder of clients.
        if clients and (top != root or root.is_dir()) and any(map(found.images.get, within)):
            break
        top = only
    return top


def _client_files(
    found: Walk,
    folder: Path,
    classes: Sequence[str] | None,
    empty: list[Path],
    lists: set[Path],
) -> list[File]:
    owners, images = found.folders[folder], found.images[folder]
    if images:
        raise UsageError(
            f"{images[0]} belongs to no client: with folders as clients, "
            "put every image into a client's folder"
        )
    if not owners:
        raise UsageError(f"{folder} has no client folders")
    by_owner = lists_of(found, folder, owners)
    lists.update(path for paths in by_owner.values() for path in paths)
    files: list[File] = []
    for owner in owners:
        top = _top_of(found, owner, owners)
        own = _files(found, top, empty) if any(found.below(owner)) else []
        if not own:
            empty.append(owner)
        if by_owner:
            own = listed(found.tree, folder, own, by_owner[owner], classes)
        files.extend(file._replace(owner=owner.name) for file in own)
    if not files and by_owner:
        raise UsageError(f"the lists in {folder} name no image: get them again")
    return files


def _top_of(found: Walk, owner: Path, owners: Sequence[Path]) -> Path:
    """Return the folder in which a client's classes lie: below one that others do not have."""

    def names_in(folder: Path) -> set[str]:
        subs = found.folders[folder]
        below = [each for sub in subs if _is_split(sub) for each in found.folders[sub]]
        return {canonical(sub.name) for sub in [*subs, *below]}

    known = set[str]().union(*(names_in(other) for other in owners if other != owner))
    top = owner

    def is_like_others(folder: Path) -> bool:
        return not known.isdisjoint(names_in(folder))

    while len(found.folders[top]) == 1 and not found.images[top] and not is_like_others(top):
        (top,) = found.folders[top]
    return top if is_like_others(top) and not found.images[top] else owner


def _is_split(folder: Path) -> bool:
    return folder.name.lower() in SPLITS


def _files(found: Walk, folder: Path, empty: list[Path]) -> list[File]:
    folders, images = found.folders[folder], found.images[folder]
    if not folders or not all(map(_is_split, folders)) or images:
        return _class_files(found, folder, empty)
    names = {sub: sub.name.lower() for sub in folders}
    return [
        # Training images alone are all that there is: nothing was set apart.
        file._replace(test=names[sub] == "test" if "test" in names.values() else None)
        for sub in sorted(folders, key=lambda sub: SPLITS.index(names[sub]))
        for file in _class_files(found, sub, empty)
    ]


def _class_files(found: Walk, folder: Path, empty: list[Path]) -> list[File]:
    folders = found.folders[folder]
    if found.images[folder] or not folders:
        return [File(path, None) for path in found.below(folder)]
    files = []
    for sub in folders:
        if _is_split(sub) and found.folders[sub]:
            raise UsageError(
                f"{folder} holds {sub.name}/ and other folders ({folders[0].name}, …): put train/ "
                "and test/ with nothing beside them, or rename them"
            )
        own = [File(path, sub) for path in found.below(sub)]
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
    said = {
        "empty": [found.name(path) for path in layout.empty],
        "hidden": found.hidden,
        "notes": spellings((name for file in files if (name := file.class_name)), "classes")
        + spellings((name for file in files if (name := file.owner)), "clients"),
    }
    facts = {"others": as_text(layout.others), "said": np.array(json.dumps(said))}
    return dict(zip(_LAYOUT, arrays, strict=True)) | facts


def _indices(names: Iterable[str | None]) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    written = [name for name in names if name is not None]
    shown = called(written)
    known = np.array([shown[canonical(name)] for name in written], np.str_)
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
    said = {key: tuple(names) for key, names in json.loads(str(arrays["said"])).items()}
    notes = said.pop("notes")
    reading = Reading((*files, *others), sizes_of(files), **said)
    facts = (name, values, labels, classes, owners, owner_names)
    if values.ndim == 2:
        return VectorData(*facts, names=names, reading=reading, notes=notes)
    return ImageData(*facts, tensor("test"), names, reading, notes)


def _without_unused(
    indices: torch.Tensor | None, names: NDArray[np.generic]
) -> tuple[torch.Tensor | None, tuple[str, ...]]:
    """Drop names of which no image is left, since their only images cannot be read."""
    if indices is None:
        return None, ()
    used, indices = torch.unique(indices, return_inverse=True)
    return indices, tuple(str(names[i]) for i in used.tolist())
