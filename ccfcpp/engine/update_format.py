"""The meaning of the parts of an update, and the tensors (name, shape, dtype) that it must hold.

An exchange declares the meaning of each part of its update. Everything around an algorithm (checks,
byte counts, secure sums, noise, attacks, defences, sending) reads this declaration and nothing
else, so that a new system has them all without further code.
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
    """A sum over images or clients, of which the server needs only the total.

    Attributes:
        count: Name of the part beside it with the number of images in each row. Divided by it, the
            rows are means of clusters.
        each: Whether each tensor of the part has a bound and noise of its own.
        of_batch: Whether the part is divided by the number of images in the batch.
        statistic: Whether its tensors must fit each other, so that false ones are refused.
        report: Whether only the report needs it.
    """

    count: str | None = None
    each: bool = False
    of_batch: bool = False
    statistic: bool = False
    report: bool = False


@dataclass(frozen=True)
class Mean:
    """A mean over clients, of changes from the part of the message with its name, else from 0.

    Attributes:
        weight: Name of the part that holds each client's weight.
        separate: Whether the server needs each client's, since it weights them in its own way.
        report: Whether only the report needs it.
        optional: Whether some clients have none, such as a loss if nothing was trained; it is a
            number then.
    """

    weight: str
    separate: bool = False
    report: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Count:
    """A number of images or steps.

    Attributes:
        public: Whether it is the number of all images, which is known even if sums have noise,
            or that of clients if all count alike.
    """

    public: bool = False


@dataclass(frozen=True)
class Votes:
    """Points that the server clusters; each client's points are its votes.

    Attributes:
        weights: Name of the part beside it with the weight of each point; None if all are equal.
        partial: Whether a client may send points for some of the clusters only.
    """

    weights: str | None = None
    partial: bool = False


@dataclass(frozen=True)
class Opaque:
    """A part that the server needs from each client as it is, such as images."""


Part = Sum | Mean | Count | Votes | Opaque

Addends = dict[str, Tensor]
"""The parts of an update that add up, by name: float64 tensors."""


def is_statistic(name: str) -> bool:
    """Return whether an entry of a model is a running statistic of batch normalisation."""
    return name.endswith(_STATISTICS)


@dataclass(frozen=True)
class Rows:
    """A number of rows, from ``least`` to ``most``, that the client chooses for a whole update."""

    most: int
    least: int = 1

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Spec:
    """Dtype and shape of one tensor; a length given as ``Rows`` is chosen by the client."""

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
            wanted.least <= found <= wanted.most if isinstance(wanted, Rows) else found == wanted
            for found, wanted in zip(tensor.shape, self.shape, strict=True)
        )

    def rows_of(self, tensor: Tensor) -> set[int]:
        """Return the numbers of rows that the client chose in a tensor of this form."""
        lengths = zip(tensor.shape, self.shape, strict=True)
        return {found for found, wanted in lengths if isinstance(wanted, Rows)}

    def zeros(self, device: torch.device | None = None) -> Tensor:
        """Return a tensor of zeros, without rows if the client chooses their number."""
        shape = [0 if isinstance(length, Rows) else length for length in self.shape]
        return torch.zeros(shape, dtype=self.dtype, device=device)

    def __str__(self) -> str:
        lengths = ", ".join(map(str, self.shape))
        return f"{self.dtype} ({lengths}{',' if len(self.shape) == 1 else ''})"


UpdateFormat = Mapping[str, Spec]
"""The form of an update: of each tensor by the name that ``payload.pack`` gives it."""


def format_of(tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Spec]:
    """Return the dtype and shape of each tensor by its name, after a prefix such as ``model/``."""
    return {prefix + name: Spec(t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def find_part(parts: Mapping[str, Part], name: str) -> Part:
    """Return the meaning of a tensor, by the longest declared name that its name begins with."""
    while name:
        if name in parts:
            return parts[name]
        name = name.rpartition(SEPARATOR)[0]
    return Opaque()


def find_unknown_part(parts: Mapping[str, Part], fields: Collection[str]) -> str | None:
    """Return a declared name that is no field of the update; None if all are fields."""
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
    """Return the names of tensors that are bounded together, by the name of their group."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        part = find_part(parts, name)
        alone = isinstance(part, Sum) and part.each
        found.setdefault(name if alone else name.partition(SEPARATOR)[0], []).append(name)
    return found


def sibling_name(name: str, other: str) -> str:
    """Return the full name of a part beside another one."""
    before, separator, _ = name.rpartition(SEPARATOR)
    return before + separator + other
