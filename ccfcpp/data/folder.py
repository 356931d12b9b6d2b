"""Images from a folder of image files, or from an archive of such a folder."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.config import DataConfig
from ccfcpp.core.name_matching import canonical, describe_spellings, display_names
from ccfcpp.core.units import format_count
from ccfcpp.data.archives import is_archive, without_suffix
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.decoding import installed_extras
from ccfcpp.data.file_tree import ImageFile, Tree, open_tree
from ccfcpp.data.folder_layout import Layout, assign_folders, check_classes
from ccfcpp.data.image_files import (
    FileFacts,
    Read,
    Reading,
    check_share,
    embed_files,
    facts_as_array,
    facts_from_array,
    read_files,
    sizes_of,
)
from ccfcpp.data.image_size import Shape
from ccfcpp.data.images import ImageData
from ccfcpp.data.vectors import VectorData

if TYPE_CHECKING:
    from ccfcpp.data.encoders.encoder import Encoder

_BITS = 8
_THUMBNAIL_SIDE = 64
"""Height and width of thumbnails in pixels."""


def read_folder(
    path: Path,
    *,
    how: DataConfig,
    shape: Shape | None,
    encoder: "Encoder | None",
    folders_are_clients: bool,
    classes: Sequence[str] | None,
    flat: bool,
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
        images. If only some clients have one, the others have training images only. A client
        without images of the `classes` is not among the owners.

    Raises:
        UsageError: If the layout is mixed or empty, the archive is broken, or too many files
            cannot be read.
    """
    chosen = None if classes is None else sorted(set(classes))
    with open_tree(path) as tree:
        if flat:
            layout = Layout([ImageFile(file, None) for file in tree.below(path)], [], set())
        else:
            layout = assign_folders(tree, folders_are_clients, chosen)
        paths = [file.path for file in layout.files]
        if encoder is None:
            values, facts = _decode_cached(paths, tree, how, shape)
        else:
            values, facts = embed_files(paths, tree, how, encoder)
        check_share(facts, how.skip, path)
        empty, hidden = tuple(map(tree.name, layout.empty)), tuple(tree.hidden)
        reading = Reading(
            (*facts, *tree.list_other_files(layout.lists)), sizes_of(facts), empty, hidden
        )
    name = without_suffix(path) if is_archive(path) and path.is_file() else path.resolve().name
    read = [file for file, fact in zip(layout.files, facts, strict=True) if not fact.reason]
    data = _make_data_set(name, torch.from_numpy(values), layout.files, read)
    names = tuple(fact.name for fact in facts if not fact.reason)
    notes = (*data.notes, *layout.notes, *_describe_decoding(facts, how))
    if isinstance(data, VectorData) and encoder is not None:
        pictures = partial(read_thumbnails, path, how)
        data = replace(data, encoder=encoder.hash, named_by="file", pictures=pictures)
    return replace(data, names=names, reading=reading, notes=notes)


def _describe_decoding(facts: Sequence[FileFacts], how: DataConfig) -> Iterator[str]:
    """Yield remarks on files of which not all is read: frames, and more than 8 bits."""
    headers = [fact.header for fact in facts if fact.header and not fact.reason]
    if several := sum(header.frames > 1 for header in headers):
        yield f"of {format_count(several, 'file')} with several frames or pages the first is read"
    deep = sum(header.bits > _BITS for header in headers)
    if deep and how.window is None:
        yield (
            f"{format_count(deep, 'image')} of more than 8 bits: each is mapped to 8 by its own "
            "range or DICOM window; --window LOW,HIGH gives all the same"
        )
    if headers and not deep and how.window is not None:
        yield "--window has no effect, since no image has more than 8 bits"


def _decode_cached(files: Sequence[Path], tree: Tree, how: DataConfig, shape: Shape | None) -> Read:
    """Return the images, decoded or from the cache, and a record (``FileFacts``) of each file."""

    def decode() -> Arrays:
        images, facts = read_files(files, tree, how, shape)
        return {"images": images, "files": facts_as_array(facts)}

    # The records name files by their paths below the root.
    root = str(tree.root.absolute())
    key = json.dumps([root, how.image_size, shape, how.window, how.max_pixels, installed_extras()])
    arrays = cached(tree.disk_paths(files), f"folder {key}", ("images", "files"), decode)
    return arrays["images"], facts_from_array(arrays["files"])


def _make_data_set(
    name: str, values: Tensor, files: Sequence[ImageFile], read: Sequence[ImageFile]
) -> ImageData | VectorData:
    """Make a data set, with the classes, owners and split that the files' folders give.

    Args:
        name: Name of the data set.
        values: Images or vectors of the files in ``read``, as ``read_files`` returns them.
        files: All image files, whose folders name the classes and owners.
        read: The files that could be read.
    """
    every_class = [file.class_name for file in files if file.class_name]
    every_owner = [file.owner for file in files if file.owner]
    facts = (
        *_index_names(every_class, (file.class_name for file in read)),
        *_index_names(every_owner, (file.owner for file in read)),
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


def read_thumbnails(path: Path, how: DataConfig, names: Sequence[str]) -> Mapping[str, Tensor]:
    """Read named images of a folder or an archive as thumbnails, uint8 (3, 64, 64), by name."""
    with open_tree(path) as tree:
        by_name = {tree.name(file): file for file in tree.below(path)}
        files = [by_name[name] for name in names if name in by_name]
        images, facts = read_files(files, tree, how, (3, _THUMBNAIL_SIDE, _THUMBNAIL_SIDE))
    read = (file.name for file in facts if not file.reason)
    return dict(zip(read, torch.from_numpy(images), strict=True))


def _index_names(
    every: Iterable[str], names: Iterable[str | None]
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Encode names as int64 indices into the distinct ``names``, which are returned, too.

    Names are spelt as their first match in ``every``, the names of all files, is.
    """
    shown = display_names(every)
    if not shown:
        return None, ()
    distinct, indices = np.unique(
        [shown[canonical(name)] for name in names if name], return_inverse=True
    )
    return torch.from_numpy(indices.astype(np.int64)), tuple(map(str, distinct))


def keep_classes(data: ImageData, names: Sequence[str]) -> ImageData:
    """Keep only the images of the named classes, and renumber their labels.

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
