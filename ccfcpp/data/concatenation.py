"""Concatenation of two data sets."""

from dataclasses import replace

import torch
from torch import Tensor

from ccfcpp.core.errors import UsageError
from ccfcpp.core.name_matching import canonical, display_names
from ccfcpp.data.image_files import Reading
from ccfcpp.data.images import S, Samples
from ccfcpp.data.vectors import VectorData


def join_samples(first: S, second: S, prefix: str) -> S:
    """Append the samples of the second data set to those of the first.

    Args:
        first: The first data set, whose name and order of classes the result has.
        second: Data set of the same type. Classes are matched by name; new ones come last.
        prefix: Put before the sample names of ``second``, to tell them from those of ``first``.

    Returns:
        All samples, with labels if both have them, and without owners.

    Raises:
        UsageError: The samples differ in shape, or the encoders that made them differ.
    """
    shapes = [tuple(each.values.shape[1:]) for each in (first, second)]
    if shapes[0] != shapes[1]:
        raise UsageError(
            f"{prefix} holds {second.unit}s of shape {shapes[1]}, and {first.name} of {shapes[0]}: "
            "give data of the same form"
        )
    if getattr(first, "encoder", "") != getattr(second, "encoder", ""):
        raise UsageError(
            f"the vectors of {prefix} and {first.name} were not made by the same encoder: embed "
            "all by one"
        )
    labels, classes = _join_labels(first, second)
    names = (*first.called, *(f"{prefix}/{name}" for name in second.called))
    joined = replace(
        first,
        values=torch.cat([first.values, second.values.to(first.values.device)]),
        labels=labels,
        classes=classes,
        owners=None,
        owner_names=(),
        test=None,
        names=names if first.names or second.names else (),
        reading=_join_reading(first, second, prefix),
        notes=(*first.notes, *second.notes),
    )
    if isinstance(joined, VectorData) and isinstance(second, VectorData):
        return replace(joined, texts={**second.texts, **joined.texts})
    return joined


def _join_labels(first: Samples, second: Samples) -> tuple[Tensor | None, tuple[str, ...]]:
    if first.labels is None or second.labels is None:
        return None, ()
    classes = display_names((*first.classes, *second.classes))
    index = torch.tensor([[*classes].index(canonical(name)) for name in second.classes])
    return torch.cat([first.labels, index[second.labels]]), tuple(classes.values())


def _join_reading(first: Samples, second: Samples, prefix: str) -> Reading | None:
    """Join both data sets' records of how files were read; ``prefix`` marks files of the second."""
    one, other = first.reading, second.reading
    if other is None:
        return one
    files = tuple(replace(file, name=f"{prefix}/{file.name}") for file in other.files)
    base = one or replace(other, files=(), empty=(), hidden=())
    return replace(
        base,
        files=(*base.files, *files),
        empty=(*base.empty, *(f"{prefix}/{name}" for name in other.empty)),
        hidden=(*base.hidden, *(f"{prefix}/{name}" for name in other.hidden)),
    )
