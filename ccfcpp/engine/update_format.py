"""The meaning of the parts of an update, and the tensors (name, shape, dtype) that it must hold.

A part is a tensor, or several under one name, such as a model. An exchange declares the meaning of
each part. Checks, byte counts, secure sums, noise, attacks, defences and sending read this
declaration and nothing else, so that a new system has them all without further code.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

SEPARATOR = "/"
"""Separates the names of nested parts, as in ``model/encoder.weight``."""

_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Sum:
    """Declares a part (named tensors) as a sum over images or clients; only its total is needed.

    Attributes:
        count: Name of the part with the number of images in each row; a row divided by it is the
            mean of a cluster.
        each: Whether each tensor of the part has its own norm bound and noise.
        of_batch: Whether the part is divided by the number of images in the batch.
        statistic: Whether its tensors must be consistent with each other, as the server checks.
        report: Whether it is used only in the report.
    """

    count: str | None = None
    each: bool = False
    of_batch: bool = False
    statistic: bool = False
    report: bool = False


@dataclass(frozen=True)
class Mean:
    """Declares a part (named tensors of an update) as a weighted mean over clients.

    The mean is taken of the changes from the message's part of that name; from 0 if there is none.

    Attributes:
        weight: Name of the part that holds each client's weight.
        separate: Whether the server needs each client's value, to weight it in its own way.
        report: Whether it is used only in the report.
        optional: Whether a client may leave it out, such as the loss if it trained nothing; the
            part is then a number.
    """

    weight: str
    separate: bool = False
    report: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Count:
    """Declares a part (named tensors of an update) as a number of images or steps.

    Attributes:
        public: Whether its total is the number of all images, or of all clients if they have equal
            weight, which is known and gets no noise.
    """

    public: bool = False


@dataclass(frozen=True)
class Votes:
    """Declares a part (named tensors) as points, a client's votes in the server's clustering.

    Attributes:
        weights: Name of the part with the weight of each point; None if all are equal.
        partial: Whether a client may send points for some of the clusters only.
    """

    weights: str | None = None
    partial: bool = False


@dataclass(frozen=True)
class Opaque:
    """Declares a part of an update that the server needs from each client as it is, like images."""


Part = Sum | Mean | Count | Votes | Opaque

Addends = dict[str, Tensor]
"""The parts of an update that are added up over clients, by name: float64 tensors."""


def is_statistic(name: str) -> bool:
    """Return whether a model's tensor of this name is a running statistic of BatchNorm."""
    return name.endswith(_STATISTICS)


@dataclass(frozen=True)
class Rows:
    """Allowed numbers of rows; a client chooses one number for all tensors of its update."""

    most: int
    least: int = 1

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Spec:
    """Allowed dtype and shape of a tensor; the client chooses a length given as ``Rows``."""

    dtype: torch.dtype
    shape: tuple[int | Rows, ...] = ()
    optional: bool = False

    def fits(self, tensor: Tensor) -> bool:
        """Return whether a tensor has this dtype and shape, and is dense."""
        if tensor.dtype != self.dtype or tensor.ndim != len(self.shape):
            return False
        if tensor.layout != torch.strided or tensor.is_meta:
            return False
        return all(
            wanted.least <= length <= wanted.most if isinstance(wanted, Rows) else length == wanted
            for length, wanted in zip(tensor.shape, self.shape, strict=True)
        )

    def rows_of(self, tensor: Tensor) -> set[int]:
        """Return the lengths of a tensor that its client could choose, those given as ``Rows``."""
        lengths = zip(tensor.shape, self.shape, strict=True)
        return {length for length, wanted in lengths if isinstance(wanted, Rows)}

    def zeros(self, device: torch.device | None = None) -> Tensor:
        """Return a tensor of zeros; a length that the client chooses is 0."""
        shape = [0 if isinstance(length, Rows) else length for length in self.shape]
        return torch.zeros(shape, dtype=self.dtype, device=device)

    def __str__(self) -> str:
        lengths = ", ".join(map(str, self.shape))
        return f"{self.dtype} ({lengths}{',' if len(self.shape) == 1 else ''})"


UpdateFormat = Mapping[str, Spec]
"""Dtype and shape of each tensor of an update, by the name that ``payload.pack`` gives it."""


def format_of(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Spec]:
    """Return the dtype and shape of each tensor by its name, after a prefix such as ``model/``."""
    return {prefix + name: Spec(t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def find_part(parts: Mapping[str, Part], name: str) -> Part:
    """Return the declaration for a tensor, by the longest matching name; else ``Opaque``."""
    while name:
        if name in parts:
            return parts[name]
        name = name.rpartition(SEPARATOR)[0]
    return Opaque()


def find_unknown_part(parts: Mapping[str, Part], fields: Collection[str]) -> str | None:
    """Return the first name in ``parts`` that is in no field of the update; None if all are."""
    for name, part in parts.items():
        match part:
            case Sum(count=str(other)) | Mean(weight=other) | Votes(weights=str(other)):
                named = [name, sibling_name(name, other)]
            case _:
                named = [name]
        for each in named:
            if each.partition(SEPARATOR)[0] not in fields:
                return each
    return None


def group_names(parts: Mapping[str, Part], names: Iterable[str]) -> dict[str, list[str]]:
    """Group the names of tensors by the norm bound that they share; keys name the groups."""
    grouped: dict[str, list[str]] = {}
    for name in sorted(names):
        part = find_part(parts, name)
        alone = isinstance(part, Sum) and part.each
        grouped.setdefault(name if alone else name.partition(SEPARATOR)[0], []).append(name)
    return grouped


def sibling_name(name: str, other: str) -> str:
    """Return the full name of ``other``, a part beside ``name``: ``a/c`` for ``a/b`` and ``c``."""
    before, separator, _ = name.rpartition(SEPARATOR)
    return before + separator + other
