"""What data sets of images and of vectors have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch import Tensor


class Samples(ABC):
    """Samples with optional classes and owners.

    Attributes:
        name: Name of the data set in reports.
        labels: int64 `(samples,)`, each an index into `classes`; None if unlabelled.
        classes: Class names; empty exactly if unlabelled.
        owners: int64 `(samples,)`, each an index into `owner_names`; None if no one owns them.
        owner_names: Names of the clients that the samples belong to; empty exactly if no one does.
        test: bool `(samples,)`, True for the samples that the publisher set apart for testing; None
            where nobody did.
    """

    name: str
    labels: Tensor | None
    classes: tuple[str, ...]
    owners: Tensor | None
    owner_names: tuple[str, ...]
    test: Tensor | None

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """The samples themselves, of shape `(samples, …)`."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """What a sample is: `image` or `vector`."""

    def __len__(self) -> int:
        return self.values.shape[0]

    def to(self, device: torch.device | str) -> Self:
        """Copy the data to a device."""
        return self.each(lambda tensor: tensor.to(device))

    def each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Change each tensor: the samples, labels, owners and test."""
        this: Any = self  # Each kind is a dataclass.
        own = {field.name: getattr(self, field.name) for field in fields(this)}
        tensors = {name: value for name, value in own.items() if isinstance(value, Tensor)}
        changed: Self = replace(this, **{name: change(tensor) for name, tensor in tensors.items()})
        return changed


def rows(values: Tensor, index: Tensor) -> Tensor:
    """Return some rows; of indices that follow each other a view, so that a mapped file stays so.

    Args:
        values: Of shape `(samples, …)`.
        index: int64 `(chosen,)`.
    """
    first, count = int(index[0]) if len(index) else 0, len(index)
    if torch.equal(index, torch.arange(first, first + count, device=index.device)):
        return values[first : first + count]
    return values[index]


def check_facts(data: Samples) -> None:
    """Check that labels, owners and test fit the samples and their names.

    Raises:
        ValueError: If a dtype, a shape or an index does not fit.
    """
    _check_indices("labels", data.labels, "classes", data.classes, len(data))
    _check_indices("owners", data.owners, "owner_names", data.owner_names, len(data))
    test = data.test
    if test is not None and (test.dtype != torch.bool or test.shape != (len(data),)):
        raise ValueError(f"test must be bool ({len(data)},), not {test.dtype} {tuple(test.shape)}")


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
