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

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.config import DataConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.names import called, canonical, spellings
from ccfcpp.data.archives import is_archive, without_suffix
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.decoding import extras
from ccfcpp.data.images import ImageData
from ccfcpp.data.reading import (
    Reading,
    as_text,
    check_share,
    embed_files,
    from_text,
    read_files,
    sizes_of,
)
from ccfcpp.data.sets.domainnet import SPLITS, listed, lists_of
from ccfcpp.data.sizes import Shape
from ccfcpp.data.tree import ImageFile, Tree, opened
from ccfcpp.data.vectors import VectorData

if TYPE_CHECKING:
    from ccfcpp.data.encoders.encoder import Encoder

_SMALL = 64
"""Pixels a side of a small image."""


class _Layout(NamedTuple):
    """What a layout tells.

    Attributes:
        files: The images of the chosen classes, in order.
        empty: Folders that should hold images and hold none.
        lists: Files that are lists of images.
    """

    files: list[ImageFile]
    empty: list[Path]
    lists: set[Path]


def read_folder(
    path: Path,
    *,
    how: DataConfig = DataConfig(),  # noqa: B008 - it cannot change
    shape: Shape | None = None,
    encoder: "Encoder | None" = None,
    folders_are_clients: bool = False,
    classes: Sequence[str] | None = None,
    flat: bool = False,
) -> ImageData | VectorData:
    """Read a folder of images, or an archive of one, laid out as described above.

    Files are decoded once, and then cached. An encoder, which keeps vectors itself, makes vectors
    of images of any size.

    Args:
        path: The folder or the archive.
        how: How files are read.
        shape: Channels, height and width of all images, over ``how.image_size``.
        encoder: Makes vectors of the images; None keeps them.
        folders_are_clients: Whether each top-level folder is a client.
        classes: The names of the only classes to read; None reads all.
        flat: Whether folders tell nothing, and files lie at any depth.

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
    with opened(path) as tree:
        if flat:
            files = [ImageFile(file, None) for file in tree.below(path)]
            layout = _Layout(files, [], set())
        else:
            layout = _laid_out(tree, folders_are_clients, chosen)
        paths = [file.path for file in layout.files]
        if encoder is not None:
            values, facts = embed_files(paths, tree, how, encoder)
        else:

            def decode() -> Arrays:
                images, facts = read_files(paths, tree, how, shape)
                return {"images": images, "files": as_text(facts)}

            key = json.dumps([how.image_size, shape, how.window, how.max_pixels, extras()])
            arrays = cached(tree.places(paths), f"folder {key}", ("images", "files"), decode)
            values, facts = arrays["images"], from_text(arrays["files"])
        check_share(facts, how.skip, path)
        empty, hidden = tuple(map(tree.name, layout.empty)), tuple(tree.hidden)
        reading = Reading((*facts, *tree.no_images(layout.lists)), sizes_of(facts), empty, hidden)

    read = [file for file, fact in zip(layout.files, facts, strict=True) if not fact.reason]
    every_class = [file.class_name for file in layout.files if file.class_name]
    every_owner = [file.owner for file in layout.files if file.owner]
    labels, names_of_classes = _indices(every_class, (file.class_name for file in read))
    owners, owner_names = _indices(every_owner, (file.owner for file in read))
    name = without_suffix(path) if is_archive(path) and path.is_file() else path.resolve().name
    known = (name, torch.from_numpy(values), labels, names_of_classes, owners, owner_names)
    names = tuple(fact.name for fact in facts if not fact.reason)
    notes = (*spellings(every_class, "classes"), *spellings(every_owner, "clients"))
    if encoder is not None:
        small = partial(thumbnails, path, how)
        made = VectorData(*known, names=names, reading=reading, notes=notes)
        return replace(made, encoder=encoder.hash, named_by="file", pictures=small)
    is_test = torch.tensor([bool(file.test) for file in read], dtype=torch.bool)
    test = is_test if any(file.test is not None for file in layout.files) else None
    return ImageData(*known, test, names, reading, notes)


def thumbnails(path: Path, how: DataConfig, names: Sequence[str]) -> Mapping[str, Tensor]:
    """Return small images of files of a folder or an archive, by their names."""
    with opened(path) as tree:
        by_name = {tree.name(file): file for file in tree.below(path)}
        there = [by_name[name] for name in names if name in by_name]
        images, facts = read_files(there, tree, how, (3, _SMALL, _SMALL))
    read = (file.name for file in facts if not file.reason)
    return dict(zip(read, torch.from_numpy(images), strict=True))


def _indices(
    every: Iterable[str], names: Iterable[str | None]
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Number the names of files that are read, as they are written first among all files."""
    shown = called(every)
    if not shown:
        return None, ()
    distinct, indices = np.unique(
        [shown[canonical(name)] for name in names if name], return_inverse=True
    )
    return torch.from_numpy(indices.astype(np.int64)), tuple(map(str, distinct))


def _laid_out(tree: Tree, clients: bool, classes: Sequence[str] | None) -> _Layout:
    """Find the files of the chosen classes."""
    top = _top(tree, clients)
    empty: list[Path] = []
    lists: set[Path] = set()
    files = _client_files(tree, top, classes, empty, lists) if clients else _files(tree, top, empty)
    if any(file.folder is None for file in files):
        files = [file._replace(folder=None) for file in files]
    while len({canonical(file.class_name or "") for file in files}) == 1 and all(
        file.folder not in (None, file.path.parent) for file in files
    ):
        files = [file.deeper for file in files]  # One folder more: it tells nothing.
    if classes is not None:
        known = sorted({name for file in files if (name := file.class_name)})
        kept = check_classes(classes, known, str(tree.root))
        files = [file for file in files if canonical(file.class_name or "") in kept]
    return _Layout(files, empty, lists)


def _top(tree: Tree, clients: bool) -> Path:
    """Return the folder to begin with: below those that hold nothing but the next."""
    root = top = tree.root
    while len(tree.folders[top]) == 1 and not tree.images[top]:
        (only,) = tree.folders[top]
        within, images = tree.folders[only], tree.images[only]
        is_client = clients and all(map(_is_split, within))
        if _is_split(only) or images or not within or is_client:
            break
        # A client's classes hold images. An archive, though, may well hold the folder of clients.
        if clients and (top != root or root.is_dir()) and any(map(tree.images.get, within)):
            break
        top = only
    return top


def _client_files(
    tree: Tree,
    folder: Path,
    classes: Sequence[str] | None,
    empty: list[Path],
    lists: set[Path],
) -> list[ImageFile]:
    owners, images = tree.folders[folder], tree.images[folder]
    if images:
        raise UsageError(
            f"{images[0]} belongs to no client: with folders as clients, "
            "put every image into a client's folder"
        )
    if not owners:
        raise UsageError(f"{folder} has no client folders")
    by_owner = lists_of(tree, folder, owners)
    lists.update(path for paths in by_owner.values() for path in paths)
    files: list[ImageFile] = []
    for owner in owners:
        top = _top_of(tree, owner, owners)
        own = _files(tree, top, empty) if any(tree.below(owner)) else []
        if not own:
            empty.append(owner)
        if by_owner:
            own = listed(tree, folder, own, by_owner[owner], classes)
        files.extend(file._replace(owner=owner.name) for file in own)
    if not files and by_owner:
        raise UsageError(f"the lists in {folder} name no image: get them again")
    return files


def _top_of(tree: Tree, owner: Path, owners: Sequence[Path]) -> Path:
    """Return the folder in which a client's classes lie: below one that others do not have."""

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
    return folder.name.lower() in SPLITS


def _files(tree: Tree, folder: Path, empty: list[Path]) -> list[ImageFile]:
    folders, images = tree.folders[folder], tree.images[folder]
    if not folders or not all(map(_is_split, folders)) or images:
        return _class_files(tree, folder, empty)
    names = {sub: sub.name.lower() for sub in folders}
    return [
        # Training images alone are all that there is: nothing was set apart.
        file._replace(test=names[sub] == "test" if "test" in names.values() else None)
        for sub in sorted(folders, key=lambda sub: SPLITS.index(names[sub]))
        for file in _class_files(tree, sub, empty)
    ]


def _class_files(tree: Tree, folder: Path, empty: list[Path]) -> list[ImageFile]:
    folders = tree.folders[folder]
    if tree.images[folder] or not folders:
        return [ImageFile(path, None) for path in tree.below(folder)]
    files = []
    for sub in folders:
        if _is_split(sub) and tree.folders[sub]:
            raise UsageError(
                f"{folder} holds {sub.name}/ and other folders ({folders[0].name}, …): put train/ "
                "and test/ with nothing beside them, or rename them"
            )
        own = [ImageFile(path, sub) for path in tree.below(sub)]
        if not own:
            empty.append(sub)
        files.extend(own)
    return files


def keep_classes(data: ImageData, names: Sequence[str]) -> ImageData:
    """Return the images of some classes, labelled with these alone; they stay in their order.

    Raises:
        UsageError: If there is no such class.
    """
    kept = check_classes(names, data.classes, data.name)
    classes = tuple(name for name in data.classes if canonical(name) in kept)
    assert data.labels is not None  # else there are no classes, and none can be kept
    new_label = torch.full((len(data.classes),), -1)
    new_label[[data.classes.index(name) for name in classes]] = torch.arange(len(classes))
    labels = new_label[data.labels]
    chosen = labels >= 0
    return replace(data.selected(chosen), labels=labels[chosen], classes=classes)


def check_classes(names: Sequence[str], known: Sequence[str], where: str) -> frozenset[str]:
    """Return `names` as `canonical` has them.

    Raises:
        UsageError: If there are none, or one is not among the `known` ones.
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
