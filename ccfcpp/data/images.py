"""Data sets in memory: samples with optional labels and owners, such as uint8 images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ccfcpp.core.errors import UsageError

if TYPE_CHECKING:
    from ccfcpp.data.image_files import Reading
    from ccfcpp.data.image_size import Sizes


# No generated `==`: comparing tensors gives a tensor, not a truth value.
@dataclass(frozen=True, eq=False)
class Samples:
    """Base class of data sets in memory: samples with optional labels and owners.

    Attributes:
        name: Name of the data set in reports.
        values: The samples themselves, of shape `(samples, …)`.
        labels: int64 `(samples,)`, each an index into `classes`; None if unlabelled.
        classes: Class names; empty exactly if unlabelled.
        owners: int64 `(samples,)`, each an index into `owner_names`; None without owners.
        owner_names: Names of the clients that the samples belong to; empty without owners.
        test: bool `(samples,)`, True for the samples that the publisher set apart for testing; None
            if there is no such split.
        names: Name of each sample; empty if there are none.
        reading: Record of how the image files were read; None if there were no image files.
        notes: Remarks for the user on the data, a line each.

    Raises:
        ValueError: If a dtype, a shape or an index does not agree with the above.
    """

    name: str
    values: Tensor
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    owners: Tensor | None = None
    owner_names: tuple[str, ...] = ()
    test: Tensor | None = None
    names: tuple[str, ...] = ()
    reading: Reading | None = None
    notes: tuple[str, ...] = ()

    unit: ClassVar[str]
    """The word for a sample: `image` or `vector`."""

    def __post_init__(self) -> None:
        self._check_values()
        _check_indices("labels", self.labels, "classes", self.classes, len(self))
        _check_indices("owners", self.owners, "owner_names", self.owner_names, len(self))
        test = self.test
        if test is not None and (test.dtype != torch.bool or test.shape != (len(self),)):
            raise ValueError(
                f"test must be bool ({len(self)},), not {test.dtype} {tuple(test.shape)}"
            )
        if len(self.names) not in (0, len(self)):
            raise ValueError(f"there are {len(self.names)} names for {len(self)} {self.unit}s")

    def _check_values(self) -> None:
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Name of the column that holds the samples' names in a table of results."""
        return "file"

    def __len__(self) -> int:
        return self.values.shape[0]

    def to(self, device: torch.device | str) -> Self:
        """Copy the data to a device."""
        return self.each(lambda tensor: tensor.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the data with a function applied to `values`, `labels`, `owners` and `test`."""

        def changed(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else change(tensor)

        return replace(
            self,
            values=change(self.values),
            labels=changed(self.labels),
            owners=changed(self.owners),
            test=changed(self.test),
        )

    @property
    def called(self) -> tuple[str, ...]:
        """Name of each sample; without names, its index."""
        return self.names or tuple(map(str, range(len(self))))

    @property
    def skipped(self) -> int | None:
        """Number of files left out as unreadable or not images; None if not read from files."""
        return None if self.reading is None else len(self.reading.skipped)

    @property
    def class_sizes(self) -> dict[str, int]:
        """Number of samples of each class, by its name."""
        return _count_by_name(self.labels, self.classes)

    @property
    def client_sizes(self) -> dict[str, int]:
        """Number of samples of each client, by its name."""
        return _count_by_name(self.owners, self.owner_names)

    def selected(self, chosen: Tensor) -> Self:
        """Select samples by an index or a mask, with the same classes and clients."""
        called = self.called
        index = torch.arange(len(self))[chosen.cpu()].tolist()
        part = replace(self, names=()).each(lambda tensor: tensor[chosen])
        return replace(part, names=tuple(called[i] for i in index))


def _count_by_name(indices: Tensor | None, names: Sequence[str]) -> dict[str, int]:
    if indices is None:
        return {}
    return dict(zip(names, indices.bincount(minlength=len(names)).tolist(), strict=True))


def take_rows(values: Tensor, index: Tensor) -> Tensor:
    """Return rows by index; consecutive ones as a view, so that a memory-mapped file is not read.

    Args:
        values: Tensor of shape `(samples, …)`.
        index: int64 `(chosen,)`.
    """
    first, count = int(index[0]) if len(index) else 0, len(index)
    if torch.equal(index, torch.arange(first, first + count, device=index.device)):
        return values[first : first + count]
    return values[index]


def _check_indices(
    what: str, indices: Tensor | None, of: str, names: tuple[str, ...], samples: int
) -> None:
    if indices is None:
        if names:
            raise ValueError(f"{of} without {what}: give both or neither")
        return
    if indices.dtype != torch.int64 or indices.shape != (samples,):
        raise ValueError(
            f"{what} must be int64 ({samples},), not {indices.dtype} {tuple(indices.shape)}"
        )
    if samples and not 0 <= int(indices.min()) <= int(indices.max()) < len(names):
        raise ValueError(
            f"{what} must lie in [0, {len(names)}), the number of {of}, "
            f"not in [{int(indices.min())}, {int(indices.max())}]"
        )


@dataclass(frozen=True, eq=False)
class ImageData(Samples):
    """Images of one size, held in memory: uint8 `(samples, channels, height, width)`.

    ``names`` of images from files are paths below the folder or in the archive, with slashes.
    """

    unit = "image"

    def _check_values(self) -> None:
        if self.values.dtype != torch.uint8 or self.values.ndim != 4:
            raise ValueError(
                "images must be uint8 (samples, channels, height, width), "
                f"not {self.values.dtype} {tuple(self.values.shape)}"
            )

    @property
    def images(self) -> Tensor:
        """The images: the same tensor as ``values``."""
        return self.values

    @property
    def sizes(self) -> Sizes:
        """Statistics of the images' sizes; for images from files, of the original sizes."""
        from ccfcpp.data.image_size import Sizes

        if self.reading is not None:
            return self.reading.sizes
        channels, height, width = self.images.shape[1:]
        return Sizes.of([(height, width)] * len(self), channels > 1)


def sample_indices(index: Tensor, count: int | None, generator: torch.Generator) -> Tensor:
    """Draw `count` of the indices without replacement, in their order; all if count is None."""
    if count is None or count >= len(index):
        return index
    chosen = torch.randperm(len(index), generator=generator)[:count]
    return index[chosen.sort().values]


S = TypeVar("S", bound=Samples)


def fit(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Resize uint8 images on the CPU to (channels, height, width), bilinear with antialiasing.

    The aspect ratio is not kept. Grey images are repeated in three channels. The result is `images`
    itself if they already have that shape.

    Raises:
        UsageError: The images are in colour, and one channel is wanted.
    """
    channels, *size = shape
    if images.shape[-2:] != tuple(size):
        images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
    if images.shape[1] > channels:
        raise UsageError("it is in colour, and grey images are wanted: make it grey")
    return images if images.shape[1] == channels else images.expand(-1, channels, -1, -1)


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 images to floats in [0, 1], in torch's memory format channels-last.

    Vectors, which are floats already, keep their values.
    """
    if images.is_floating_point():
        return images.to(torch.get_default_dtype())
    return (images.to(torch.get_default_dtype()) / 255).contiguous(
        memory_format=torch.channels_last
    )


def forward_batch(size: int, most: int = 1024, usual_size: int = 28 * 28) -> int:
    """Return the batch size for passing images through a network outside of training.

    Args:
        size: Number of values in an image.
        most: Batch size for images of ``usual_size`` values; it is smaller for larger images, so
            that memory does not grow with their size.
        usual_size: Number of values in a usual image.
    """
    return min(most, max(1, most * usual_size // size))
