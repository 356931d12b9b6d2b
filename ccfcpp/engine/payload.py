"""Conversion of dataclasses of tensors and numbers to flat dictionaries of tensors, and back.

The server's states, messages and updates are such dataclasses. They are packed to be sent, written
to checkpoints, counted in bytes and checked.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ccfcpp.engine.client import Member
from ccfcpp.engine.exchange import RefusedUpdateError
from ccfcpp.engine.update_format import SEPARATOR, UpdateFormat

T = TypeVar("T")
INLINE = {"inline": True}
"""Metadata of a field whose tensors are packed without the field's name as a prefix."""
_NUMBERS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


def pack(payload: object) -> dict[str, Tensor]:
    """Flatten a dataclass to tensors by name; nested names are joined by ``/``.

    Fields may be tensors, dictionaries of tensors with string keys, numbers, nested dataclasses, or
    None (which is left out).

    Raises:
        TypeError: A field holds anything else.
    """
    tensors: dict[str, Tensor] = {}
    for field in dataclasses.fields(typing.cast(Any, payload)):
        value = getattr(payload, field.name)
        if field.metadata == INLINE:
            tensors |= pack(value)
        elif isinstance(value, Tensor):
            tensors[field.name] = value
        elif type(value) in _NUMBERS:
            tensors[field.name] = torch.tensor(value, dtype=_NUMBERS[type(value)])
        elif value is not None:
            parts = _pack_nested(value, field.name)
            tensors |= {f"{field.name}{SEPARATOR}{key}": part for key, part in parts.items()}
    return tensors


def _pack_nested(value: object, field: str) -> Mapping[str, Tensor]:
    if isinstance(value, Mapping) and all(isinstance(part, Tensor) for part in value.values()):
        return value
    if not dataclasses.is_dataclass(value):
        raise TypeError(f"field {field!r} holds a {type(value).__name__}, which cannot be packed")
    return pack(value)


class PayloadError(ValueError):
    """Tensors do not fit the fields of a dataclass; the message says why."""


def parametrize(kind: type[T], *arguments: type) -> type[T]:
    """Return a generic dataclass with these type arguments, for ``unpack``."""
    return typing.cast("type[T]", types.GenericAlias(kind, arguments))


def unpack(kind: type[T], tensors: Mapping[str, Tensor]) -> T:
    """Rebuild the dataclass ``kind`` from the result of ``pack``.

    Args:
        kind: The dataclass; if it is generic, from ``parametrize``.
        tensors: Tensors by name.

    Raises:
        PayloadError: A field without default is missing, a number has another shape or dtype, or a
            name belongs to no field.
    """
    origin: Any = typing.get_origin(kind) or kind
    hints = _type_hints(origin)
    given = dict(zip(getattr(origin, "__parameters__", ()), typing.get_args(kind), strict=False))
    values: dict[str, Any] = {}
    fields = dataclasses.fields(origin)
    known = {field.name for field in fields if field.metadata != INLINE}
    rest = {n: t for n, t in tensors.items() if n.split(SEPARATOR)[0] not in known}
    if rest and len(known) == len(fields):
        raise PayloadError(f"{kind.__name__} has no {min(rest)!r}")
    for field in fields:
        prefix = field.name + SEPARATOR
        inner = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
        field_type, optional = _without_none(hints[field.name])
        field_type = given.get(field_type, field_type)
        if field.metadata == INLINE:
            values[field.name] = unpack(field_type, rest)
        elif field.name in tensors:
            tensor = tensors[field.name]
            values[field.name] = _number(field.name, tensor, field_type)
        elif _is_dataclass(field_type) and (inner or not optional):
            values[field.name] = unpack(typing.cast(Any, field_type), inner)
        elif typing.get_origin(field_type) is dict and (inner or not optional):
            values[field.name] = inner
        elif optional:
            values[field.name] = None
        else:
            raise PayloadError(f"{kind.__name__} needs {field.name!r}")
    rebuilt: T = origin(**values)
    return rebuilt


_type_hints = functools.cache(typing.get_type_hints)


def _is_dataclass(kind: object) -> bool:
    return dataclasses.is_dataclass(typing.get_origin(kind) or kind)


def _number(name: str, tensor: Tensor, kind: type) -> Any:
    """Return a tensor's value if its field is a number; otherwise return the tensor."""
    if kind not in _NUMBERS:
        return tensor
    if tensor.shape != () or tensor.dtype != _NUMBERS[kind]:
        raise PayloadError(
            f"{name!r} is {tensor.dtype} {tuple(tensor.shape)}, expected {_NUMBERS[kind]} ()"
        )
    return tensor.item()


def _without_none(hint: object) -> tuple[Any, bool]:
    """Split ``X | None`` into (X, True); anything else is (hint, False)."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0], True
    return hint, False


def sum_updates(updates: Iterable[T]) -> T:
    """Add up dataclasses of one type, tensor by tensor and number by number, in their order.

    Fields that are Python floats are summed in float64.

    Args:
        updates: At least one; none of them is changed.
    """
    remaining = iter(updates)
    first = next(remaining)
    totals = {name: tensor.clone() for name, tensor in pack(first).items()}
    for update in remaining:
        for name, tensor in pack(update).items():
            totals[name] += tensor
    return unpack(type(first), totals)


def replace_fields(payload: T, **changes: object) -> T:
    """Copy a dataclass with changed fields, like ``dataclasses.replace`` but for protocols, too."""
    return typing.cast(T, dataclasses.replace(typing.cast(Any, payload), **changes))


def count_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Count the bytes of packed tensors, without names and headers."""
    return sum(tensor.nbytes for tensor in tensors.values())


def find_non_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor that holds NaN or Inf; None if there is none."""
    floats = {name: t for name, t in tensors.items() if t.is_floating_point()}
    # One result is copied from an accelerator, not one for each tensor.
    finite = {name: torch.isfinite(tensor).all() for name, tensor in floats.items()}
    for device in {good.device for good in finite.values()}:
        there = [good for good in finite.values() if good.device == device]
        if not bool(torch.stack(there).all()):
            return next(name for name, good in finite.items() if not bool(good))
    return None


_LONGEST_NAME = 80
"""Largest number of letters of a tensor's name in an error message."""


def check_format(expected: UpdateFormat, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``RefusedUpdateError`` if names, shapes or dtypes of tensors are not as expected."""
    rows: set[int] = set()
    for name in sorted(expected.keys() | tensors.keys()):
        spec, tensor = expected.get(name), tensors.get(name)
        if tensor is None and spec is not None and spec.optional:
            continue
        if spec is None or tensor is None or not spec.fits(tensor):
            actual = "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"
            # A client may name a tensor as it likes.
            short = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
            raise RefusedUpdateError(f"{short!r} is {actual}, expected {spec or 'nothing'}")
        rows |= spec.rows_of(tensor)
    if len(rows) > 1:
        raise RefusedUpdateError(f"its tensors have different numbers of rows: {sorted(rows)}")


def check_counts(counts: Tensor, senders: Sequence[Member]) -> None:
    """Refuse counts, such as cluster sizes, that are negative or exceed the senders' samples.

    They may be lower, since clients leave out small clusters, and samples may have weights below 1.
    A share of 10⁻⁶ and half a sample more are allowed for rounding of secure sums.
    """
    held, total = sum(sender.samples for sender in senders), float(counts.sum())
    if bool((counts < 0).any()):
        raise RefusedUpdateError("it counts fewer than no samples")
    if total > held * (1 + 1e-6) + 0.5:
        raise RefusedUpdateError(f"it counts {total:g} samples, and the client holds {held}")


def check_samples(claimed: int, senders: Sequence[Member]) -> None:
    """Refuse a number of samples other than the senders' total, which the server knows."""
    held = sum(sender.samples for sender in senders)
    if claimed != held:
        raise RefusedUpdateError(f"it claims {claimed} samples, and the client holds {held}")
