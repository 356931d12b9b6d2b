"""Data sets in memory: uint8 images with optional labels and owners."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.data.samples import Samples, check_facts


# No generated `==`: comparing tensors gives a tensor, not a truth value.
@dataclass(frozen=True, eq=False)
class ImageData(Samples):
    """Images of one size, held in memory.

    Attributes:
        name: Name of the data set in reports.
        images: uint8 `(samples, channels, height, width)`.
        labels: int64 `(samples,)`, each an index into `classes`; None if unlabelled.
        classes: Class names; empty exactly if unlabelled.
        owners: int64 `(samples,)`, each an index into `owner_names`; None if no one owns them.
        owner_names: Names of the clients that the samples belong to; empty exactly if no one does.
        test: bool `(samples,)`, True for the images that the publisher set apart for testing; None
            where nobody did.

    Raises:
        ValueError: If a dtype, a shape or an index does not agree with the above.
    """

    name: str
    images: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()
    test: Tensor | None = None

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                "images must be uint8 (samples, channels, height, width), "
                f"not {self.images.dtype} {tuple(self.images.shape)}"
            )
        check_facts(self)

    @property
    def values(self) -> Tensor:
        """The images."""
        return self.images

    @property
    def unit(self) -> str:
        """What a sample is."""
        return "image"


def random_part(index: Tensor, count: int | None, generator: torch.Generator) -> Tensor:
    """Return `count` of some indices drawn at random, in their order; all where there are fewer."""
    if count is None or count >= len(index):
        return index
    chosen = torch.randperm(len(index), generator=generator)[:count]
    return index[chosen.sort().values]


S = TypeVar("S", bound=Samples)


def selected(data: S, chosen: Tensor) -> S:
    """Select samples by an index or a mask, with the same classes and clients."""
    return data.each(lambda tensor: tensor[chosen])


def keep_classes(data: ImageData, names: Sequence[str]) -> ImageData:
    """Return the images of some classes, labelled with these alone; they stay in their order.

    Raises:
        UsageError: If there is no such class.
    """
    kept = check_classes(names, data.classes, data.name)
    classes = tuple(name for name in data.classes if name in kept)
    assert data.labels is not None  # else there are no classes, and none can be kept
    new_label = torch.full((len(data.classes),), -1)
    new_label[[data.classes.index(name) for name in classes]] = torch.arange(len(classes))
    labels = new_label[data.labels]
    chosen = labels >= 0
    return replace(selected(data, chosen), labels=labels[chosen], classes=classes)


def check_classes(names: Sequence[str], known: Sequence[str], where: str) -> frozenset[str]:
    """Return `names` as a set.

    Raises:
        UsageError: If there are none, or one is not among the `known` ones.
    """
    if not names:
        raise UsageError(f"no class of {where} is chosen: name at least one, or leave classes out")
    if not known:
        raise UsageError(f"{where} has no classes to choose {names[0]!r} from: leave classes out")
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            some = f"take some of {', '.join(known[:10])}{', …' if len(known) > 10 else ''}"
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else some
            raise UsageError(f"{where} has no class {name!r}: {hint}")
    return frozenset(names)


def resize(images: Tensor, size: int) -> Tensor:
    """Resize uint8 images on the CPU to `size` × `size`, antialiased bilinear.

    The aspect ratio is not kept. The result is `images` itself if it has that size.
    """
    if images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images, size=(size, size), mode="bilinear", antialias=True)


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 images to floats in [0, 1], channels-last, which convolutions prefer.

    Vectors, which are floats already, keep their values.
    """
    if images.is_floating_point():
        return images.to(torch.get_default_dtype())
    return (images.to(torch.get_default_dtype()) / 255).contiguous(
        memory_format=torch.channels_last
    )
