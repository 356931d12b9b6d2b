"""Images from a folder of image files, or from an archive of such a folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.config import DataConfig
from ccfcpp.core.name_matching import canonical, describe_spellings, display_names
from ccfcpp.data.archives import is_archive, without_suffix
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.decoding import extras
from ccfcpp.data.file_tree import ImageFile, Tree, open_tree
from ccfcpp.data.folder_layout import Layout, check_classes, laid_out
from ccfcpp.data.image_files import (
    Read,
    Reading,
    check_share,
    embed_files,
    facts_as_array,
    from_text,
    read_files,
    sizes_of,
)
from ccfcpp.data.image_size import Shape
from ccfcpp.data.images import ImageData
from ccfcpp.data.vectors import VectorData

if TYPE_CHECKING:
    from ccfcpp.data.encoders.encoder import Encoder

_SMALL = 64
"""Pixels a side of a small image."""


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
    """Read a folder of images, or an archive of one, laid out as `ccfcpp.data.folder_layout` says.

    Files are decoded once, and then cached. An encoder, which has a cache of its own, embeds images
    of any size.

    Args:
        path: The folder or the archive.
        how: The settings ``data``: size, window, and the share of files that may be skipped.
        shape: Channels, height and width of all images; overrides ``how.image_size``.
        encoder: Embeds the images as vectors; None returns images.
        folders_are_clients: Whether each top-level folder is a client.
        classes: The names of the only classes to read; None reads all.
        flat: Whether to ignore the folders, so that images have no classes.

    Returns:
        The images, or vectors, with the names of their files, with `owners` exactly if
        `folders_are_clients`, and with `test` exactly if there is a folder or a list of test
        images. A client without either, beside one that has them, holds training images. A client
        without images of the `classes` is no owner.

    Raises:
        UsageError: If the layout is mixed or empty, the archive is broken, or too many files
            cannot be read.
    """
    chosen = None if classes is None else sorted(set(classes))
    with open_tree(path) as tree:
        if flat:
            layout = Layout([ImageFile(file, None) for file in tree.below(path)], [], set())
        else:
            layout = laid_out(tree, folders_are_clients, chosen)
        paths = [file.path for file in layout.files]
        if encoder is None:
            values, facts = _decoded(paths, tree, how, shape)
        else:
            values, facts = embed_files(paths, tree, how, encoder)
        check_share(facts, how.skip, path)
        empty, hidden = tuple(map(tree.name, layout.empty)), tuple(tree.hidden)
        reading = Reading((*facts, *tree.no_images(layout.lists)), sizes_of(facts), empty, hidden)
    name = without_suffix(path) if is_archive(path) and path.is_file() else path.resolve().name
    read = [file for file, fact in zip(layout.files, facts, strict=True) if not fact.reason]
    data = _samples(name, torch.from_numpy(values), layout.files, read)
    names = tuple(fact.name for fact in facts if not fact.reason)
    if isinstance(data, VectorData) and encoder is not None:
        small = partial(thumbnails, path, how)
        data = replace(data, encoder=encoder.hash, named_by="file", pictures=small)
    return replace(data, names=names, reading=reading)


def _decoded(files: Sequence[Path], tree: Tree, how: DataConfig, shape: Shape | None) -> Read:
    """Decode image files, or read the decoded images from the cache."""

    def decode() -> Arrays:
        images, facts = read_files(files, tree, how, shape)
        return {"images": images, "files": facts_as_array(facts)}

    key = json.dumps([how.image_size, shape, how.window, how.max_pixels, extras()])
    arrays = cached(tree.places(files), f"folder {key}", ("images", "files"), decode)
    return arrays["images"], from_text(arrays["files"])


def _samples(
    name: str, values: Tensor, files: Sequence[ImageFile], read: Sequence[ImageFile]
) -> ImageData | VectorData:
    """Make a data set of the decoded images: classes, owners and split follow from folders."""
    every_class = [file.class_name for file in files if file.class_name]
    every_owner = [file.owner for file in files if file.owner]
    facts = (
        *_numbered(every_class, (file.class_name for file in read)),
        *_numbered(every_owner, (file.owner for file in read)),
    )
    notes = (
        *describe_spellings(every_class, "classes"),
        *describe_spellings(every_owner, "clients"),
    )
    if values.ndim == 2:
        return VectorData(name, values, *facts, notes=notes)
    is_test = torch.tensor([bool(file.test) for file in read], dtype=torch.bool)
    test = is_test if any(file.test is not None for file in files) else None
    return ImageData(name, values, *facts, test=test, notes=notes)


def thumbnails(path: Path, how: DataConfig, names: Sequence[str]) -> Mapping[str, Tensor]:
    """Return thumbnails of the named images of a folder or an archive, by name."""
    with open_tree(path) as tree:
        by_name = {tree.name(file): file for file in tree.below(path)}
        there = [by_name[name] for name in names if name in by_name]
        images, facts = read_files(there, tree, how, (3, _SMALL, _SMALL))
    read = (file.name for file in facts if not file.reason)
    return dict(zip(read, torch.from_numpy(images), strict=True))


def _numbered(
    every: Iterable[str], names: Iterable[str | None]
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return each name as an index into the distinct names of all files; and these."""
    shown = display_names(every)
    if not shown:
        return None, ()
    distinct, indices = np.unique(
        [shown[canonical(name)] for name in names if name], return_inverse=True
    )
    return torch.from_numpy(indices.astype(np.int64)), tuple(map(str, distinct))


def keep_classes(data: ImageData, names: Sequence[str]) -> ImageData:
    """Return the images of the named classes, with labels that index these names in order.

    Raises:
        UsageError: A named class does not exist.
    """
    kept = check_classes(names, data.classes, data.name)
    classes = tuple(name for name in data.classes if canonical(name) in kept)
    assert data.labels is not None  # else there are no classes, and none can be kept
    new_label = torch.full((len(data.classes),), -1)
    new_label[[data.classes.index(name) for name in classes]] = torch.arange(len(classes))
    labels = new_label[data.labels]
    chosen = labels >= 0
    return replace(data.selected(chosen), labels=labels[chosen], classes=classes)
