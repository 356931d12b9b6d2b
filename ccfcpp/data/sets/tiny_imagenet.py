"""TinyImageNet, in the layout in which it was published.

    tiny-imagenet-200/train/WNID/images/*.JPEG
    tiny-imagenet-200/val/images/*.JPEG         with val/val_annotations.txt: image, WNID, box
    tiny-imagenet-200/wnids.txt                 the classes in their order
    tiny-imagenet-200/words.txt                 WNID, names

The published test images have no labels; those for validation stand in for them, as in all papers.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ccfcpp.core.data_kinds import IMAGE_SUFFIXES
from ccfcpp.core.errors import UsageError
from ccfcpp.data.cache import Arrays, cached
from ccfcpp.data.file_tree import Tree, open_tree
from ccfcpp.data.image_files import read_whole
from ccfcpp.data.sets.published import Packed, split_mask

_BASE = "tiny-imagenet-200"
_ORDER = "wnids.txt"
_ANNOTATIONS = "val_annotations.txt"
_WORDS = "words.txt"
_SHAPE = (3, 64, 64)
_ARRAYS = ("images", "labels", "classes", "test")


class TinyImageNet(Packed):
    """The data set TinyImageNet: JPEG files, decoded once into the cache.

    A `.tar.gz` whose name begins like the original's may hold a part of the data set.
    """

    url: ClassVar = f"http://cs231n.stanford.edu/{_BASE}.zip"
    md5: ClassVar = "90528d7ca1a48142e341f4ef8d21d0de"
    more_archives: ClassVar = (f"{_BASE}*.tar.gz",)

    def read(self, place: Path) -> Arrays:
        """Read the data set from its unpacked folder or its archive, or from the cache."""
        with open_tree(place) as tree:
            files = _find_files(tree)
            # The text files are always read; what they say of the images is part of the key.
            options = json.dumps([self.name, files.labels, files.classes, files.train])
            paths = tree.disk_paths(files.images)
            return cached(paths, options, _ARRAYS, lambda: _decode(tree, files))

    def fetch(self, folder: Path) -> None:
        """Download the archive, which torchvision does not provide, into ``folder``."""
        from torchvision.datasets.utils import download_url

        download_url(self.url, str(folder), self.archive, self.md5)


class _Files(NamedTuple):
    """Image files and their labels, training images first.

    Attributes:
        images: The images' files.
        labels: Index of each image's class in `classes`.
        classes: Readable names, all distinct.
        train: Number of images for training.
    """

    images: list[Path]
    labels: list[int]
    classes: list[str]
    train: int


def _find_files(tree: Tree) -> _Files:
    """List the image files and classes of the data set, or of the part of it that is there.

    The classes are those that have training images: first those in `wnids.txt`, in its order, then
    others in the order of their identifiers. A class is named by the first of its names in
    `words.txt`, with its identifier if another class has the same name, and by its identifier if it
    has none.
    """
    base = tree.root / _BASE
    if base not in tree.folders:
        base = tree.root
    folders = {folder.name: folder for folder in _require_folder(tree.folders, base / "train")}
    listed = [wnid for wnid in _read_lines(tree, base / _ORDER) if wnid in folders]
    wnids = [*dict.fromkeys(listed), *sorted(set(folders) - set(listed))]
    index = {wnid: label for label, wnid in enumerate(wnids)}
    train = [
        (image, index[wnid])
        for wnid in wnids
        for image in _list_images(tree, folders[wnid] / "images")
    ]
    both = [*train, *_list_validation(tree, base / "val", index)]
    if not both:
        raise UsageError(f"{base} holds no image: get it again")
    return _Files(
        [image for image, _ in both],
        [label for _, label in both],
        _class_names(tree, base, wnids),
        len(train),
    )


def _decode(tree: Tree, files: _Files) -> Arrays:
    """Decode the images to the arrays of `Published.read`; grey images become colour ones."""
    images = read_whole(files.images, tree, _SHAPE)
    return {
        "images": images,
        "labels": np.array(files.labels, np.int64),
        "classes": np.array(files.classes, np.str_),
        "test": split_mask(files.train, len(images) - files.train),
    }


def _list_validation(tree: Tree, folder: Path, index: dict[str, int]) -> list[tuple[Path, int]]:
    """Return the validation images with their labels, in the order of the annotation file.

    ``index`` is the label of each class by its identifier (WNID).
    """
    there = {image.name: image for image in _list_images(tree, folder / "images")}
    annotations = folder / _ANNOTATIONS
    labels = {}
    for number, line in enumerate(_read_lines(tree, annotations), 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if name not in there or wnid not in index:
            what = f"class '{wnid}'" if name in there else f"image '{name}'"
            raise UsageError(f"{annotations}, line {number}: there is no {what}: get it again")
        labels[name] = index[wnid]
    for name in there:
        if name not in labels:
            raise UsageError(f"{annotations} has no line for {name}: get it again")
    return [(there[name], label) for name, label in labels.items()]


def _class_names(tree: Tree, base: Path, wnids: Sequence[str]) -> list[str]:
    words = {}
    if base / _WORDS in tree.others[base]:
        for line in _read_lines(tree, base / _WORDS):
            wnid, _, names = line.partition("\t")
            words[wnid] = names.partition(",")[0].strip()
    first = [words.get(wnid) or wnid for wnid in wnids]
    often = Counter(first)
    return [
        name if often[name] == 1 else f"{name} ({wnid})"
        for name, wnid in zip(first, wnids, strict=True)
    ]


def _read_lines(tree: Tree, file: Path) -> list[str]:
    if file not in _require_folder(tree.others, file.parent):
        raise UsageError(f"{file} is missing: get it again")
    return [line.strip() for line in tree.text(file).splitlines() if line.strip()]


def _list_images(tree: Tree, folder: Path) -> list[Path]:
    return [
        file
        for file in _require_folder(tree.images, folder)
        if file.suffix.lower() in IMAGE_SUFFIXES
    ]


def _require_folder(of: Mapping[Path, list[Path]], folder: Path) -> list[Path]:
    if folder not in of:
        raise UsageError(f"{folder} is missing: get it again")
    return of[folder]


TINY_IMAGENET = TinyImageNet(
    "tiny-imagenet", 110_000, 200, _SHAPE, folder=_BASE, archive=f"{_BASE}.zip", members=(_ORDER,)
)
