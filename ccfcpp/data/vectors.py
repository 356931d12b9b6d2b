"""Vectors: embeddings and rows of tables, from arrays and from files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.data.images import Samples
from ccfcpp.data.npz import index_names

Pictures = Callable[[Sequence[str]], Mapping[str, Tensor]]
"""Function that returns thumbnails, uint8 `(channels, height, width)`, of the named samples."""
Missing = Literal["refuse", "mean"]
_NUMBERS_AT_A_TIME = 1 << 22
_LARGEST = 1e150
"""Larger numbers are refused, since their squares may be infinite."""


@dataclass(frozen=True, eq=False)
class VectorData(Samples):
    """Data set of vectors of one length, in memory or in a memory-mapped file.

    They are float32 or float64 `(samples, d)`, with NaN if a value is missing.

    Attributes:
        columns: Names of the d columns; empty if they have none.
        encoder: Content hash of the encoder that made the vectors; empty if none did.
        named_by: What each sample's name stands for: its `row`, `file` or `text`.
        pictures: For embedded images, a function that returns thumbnails of them; otherwise None.
        texts: The text of each code in the columns of categories.
    """

    columns: tuple[str, ...] = ()
    encoder: str = ""
    named_by: str = "row"
    pictures: Pictures | None = None
    texts: Mapping[float, str] = field(default_factory=dict)

    unit = "vector"

    def _check_values(self) -> None:
        if self.values.dtype not in (torch.float32, torch.float64) or self.values.ndim != 2:
            raise ValueError(
                "vectors must be float32 or float64 (samples, d), "
                f"not {self.values.dtype} {tuple(self.values.shape)}"
            )
        if self.columns and len(self.columns) != self.values.shape[1]:
            raise ValueError(f"{len(self.columns)} names for {self.values.shape[1]} columns")

    @property
    def vectors(self) -> Tensor:
        """The vectors: the same tensor as ``values``."""
        return self.values

    @property
    def key(self) -> str:
        """Name of the column that holds the vectors' names in a table of results."""
        return self.named_by


def refuse_mask(values: object, name: str = "X") -> None:
    """Refuse a masked array with masked values: a conversion would read the numbers below them."""
    if np.ma.is_masked(values):
        raise UsageError(
            f"{name} has masked values, which would be read as any other: leave their samples out, "
            "or, if it holds vectors, give it as array.filled(np.nan), and the setting "
            "vectors.missing = mean"
        )


def vectors_from(
    name: str,
    array: NDArray[np.generic],
    where: str,
    *,
    columns: tuple[str, ...] = (),
    labels: NDArray[np.generic] | None = None,
    clients: NDArray[np.generic] | None = None,
    missing: Missing = "refuse",
) -> VectorData:
    """Make a data set from an array of vectors.

    Args:
        name: Name of the data set.
        array: Numbers of shape `(n, d)`. float32 and float64 are not copied, so that they may be
            memory-mapped; float16, bool and small integers become float32, others float64.
        where: Origin of the array, for error messages.
        columns: Names of the columns.
        labels: Integers or strings of shape `(n,)`.
        clients: Names of each vector's client, integers or strings of shape `(n,)`.
        missing: `refuse` NaN, or, with `mean`, keep it as a value to be imputed.

    Raises:
        UsageError: If a value is not a finite number, or the arrays do not fit each other.
    """
    check_numeric(array, where)
    if array.ndim != 2 or array.size == 0:
        raise UsageError(
            f"{where}: vectors have shape {array.shape}, but must have (n, d), neither of them 0"
        )
    numbers = _as_floats(array)
    names = columns or tuple(map(str, range(numbers.shape[1])))
    check_finite(numbers, names, where, missing)
    indices, classes, notes = index_names(labels, len(numbers), where, "labels", "vector")
    owners, owner_names, more = index_names(clients, len(numbers), where, "clients", "vector")
    facts = indices, classes, owners, owner_names
    values, remarks = torch.from_numpy(numbers), (*notes, *more)
    return VectorData(name, values, *facts, columns=columns, notes=remarks)


def check_numeric(array: NDArray[np.generic], where: str) -> None:
    """Raise ``UsageError`` if an array, whose origin is ``where``, holds other than numbers."""
    if array.dtype.kind not in "fiub":
        raise UsageError(
            f"{where}: vectors are {array.dtype}, but must be numbers: encode what is none"
        )


def _as_floats(array: NDArray[np.generic]) -> NDArray[np.floating]:
    native = array.dtype.newbyteorder("=")
    if native in (np.float32, np.float64):
        floats: NDArray[np.floating] = array.astype(native, copy=False)
        # PyTorch knows no negative strides, and warns of arrays that cannot be written to.
        return floats if min(floats.strides) >= 0 and floats.flags.writeable else floats.copy()
    exact = array.dtype.kind == "b" or array.dtype.itemsize < 3
    return array.astype(np.float32 if exact else np.float64)


def check_finite(
    numbers: NDArray[np.floating], columns: tuple[str, ...], where: str, missing: Missing
) -> None:
    """Check that numbers are finite, and that their squares neither overflow nor underflow.

    NaN is an error only if `missing` is "refuse". Numbers are examined a block at a time.

    Raises:
        UsageError: The message names the first value that does not fit.
    """
    rows, most = max(1, _NUMBERS_AT_A_TIME // numbers.shape[1]), np.finfo(numbers.dtype).max
    largest = np.zeros(numbers.shape[1])
    for start in range(0, len(numbers), rows):
        block = numbers[start : start + rows]
        sizes = np.abs(block)
        largest = np.fmax(largest, np.fmax.reduce(sizes))
        bad = sizes > min(_LARGEST, float(most))
        if missing == "refuse":
            bad |= np.isnan(block)
        if not bad.any():
            continue
        row, column = np.argwhere(bad)[0]
        value = block[row, column]
        mend = "take such rows out"
        if np.isnan(value):
            means = "their columns' means"
            mend = f"fill in such values, or give --missing mean (vectors.missing) for {means}"
        raise UsageError(
            f"{where}: column {columns[column]!r} holds {value} in row {start + row + 1}, and "
            f"vectors must hold neither NaN nor numbers beyond {_LARGEST:g}, such as inf: {mend}"
        )
    if (tiny := (largest > 0) & (largest < 1 / _LARGEST)).any():
        raise UsageError(
            f"{where}: column {columns[tiny.argmax()]!r} holds nothing beyond {largest[tiny][0]:g},"
            " whose square is 0: give it in a smaller unit"
        )
