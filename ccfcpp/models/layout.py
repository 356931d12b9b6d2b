"""The tensors of a model as one flat vector."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ccfcpp.models.state import ModelState

_ALIGNMENT = 16
"""Entries start at multiples of 64 bytes, which vector instructions and caches prefer."""


@dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class FlatLayout:
    """Places of several named tensors in one vector.

    An optimizer, an average or a client's memory then works on a whole model at once. Kernels of
    convolutions lie channels-last, the order in which patches are read.

    Args:
        tensors: Names and tensors; only their shapes matter, they may be on the meta device.

    Attributes:
        size: Length of the vector.
    """

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._entries: dict[str, _Entry] = {}
        self.size = 0
        for name, tensor in tensors:
            order = torch.channels_last if tensor.ndim == 4 else torch.contiguous_format
            laid_out = torch.empty(tensor.shape, device="meta", memory_format=order)
            self._entries[name] = _Entry(tuple(tensor.shape), laid_out.stride(), self.size)
            self.size += -(-tensor.numel() // _ALIGNMENT) * _ALIGNMENT

    @property
    def names(self) -> list[str]:
        """Names of the tensors, in the order in which they lie."""
        return list(self._entries)

    def views(self, flat: Tensor) -> ModelState:
        """Return the tensors in ``flat``, of shape (…, size), as views of it."""
        return {
            name: flat.as_strided(
                (*flat.shape[:-1], *entry.shape),
                (*flat.stride()[:-1], *entry.strides),
                flat.storage_offset() + entry.offset,
            )
            for name, entry in self._entries.items()
        }

    def fill(self, flat: Tensor, state: Mapping[str, Tensor]) -> None:
        """Copy a model's tensors into a vector of shape (size,)."""
        for name, view in self.views(flat).items():
            view.copy_(state[name])
