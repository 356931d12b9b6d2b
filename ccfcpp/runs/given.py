"""Settings that a user gave for a run."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Union, get_args, get_origin

from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import flatten, merge, nest
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import MAY_CHANGE


def as_tree(values: Mapping[str, object]) -> Tree:
    """Make a tree of settings of values, nested or by dotted key, without those that are None."""
    trees = (nest(key, value) for key, value in values.items() if value is not None)
    return functools.reduce(merge, trees, {})


def without_grids(layers: Sequence[Tree]) -> list[Tree]:
    """Return layers of settings without their grids."""
    return [
        type(layer)({key: value for key, value in layer.items() if key != "grid"})
        for layer in layers
    ]


@dataclass(frozen=True)
class Given:
    """Settings as a user gave them.

    Attributes:
        files: Settings from files, each over those before it.
        values: Single values, over the files.
    """

    files: tuple[Tree, ...] = ()
    values: Tree = field(default_factory=dict)

    @staticmethod
    def of(settings: Mapping[str, object] | None) -> Given:
        """Take single values, nested or by dotted key."""
        return Given(values=as_tree(settings or {}))

    @property
    def layers(self) -> tuple[Tree, ...]:
        """All settings, each over those before it."""
        return (*self.files, self.values)

    @property
    def has_grid(self) -> bool:
        """Whether a file holds lists of values, all combinations of which are run."""
        return any("grid" in layer for layer in self.files)

    def in_cell(self, axes: Mapping[str, object] | None = None) -> Given:
        """Return the settings of a single run, in the cell of the grid with the given values."""
        return replace(self, files=(*without_grids(self.files), as_tree(axes or {})))

    def above(self, *files: Tree) -> Given:
        """Lay the settings over other files."""
        return replace(self, files=(*files, *self.files))


def take_lists(kind: type[RunConfig], given: Given) -> tuple[Given, dict[str, Sequence[object]]]:
    """Take lists that were given for keys with a single value: they are axes of a study.

    Args:
        kind: The kind of configurations.
        given: The user's settings; a list may be a text with commas, except for a key whose value
            may be any text.

    Returns:
        The other settings, and the lists by dotted key.

    Raises:
        UsageError: A list holds an empty value, or nothing.
    """
    values = dict(flatten(given.values))
    fields = kind.known_fields(functools.reduce(merge, given.layers, {}))
    axes: dict[str, Sequence[object]] = {}
    for key, value in values.items():
        kinds = _kinds(fields[key].annotation) if key in fields else {list}
        if key in MAY_CHANGE or kinds & {list, tuple, dict}:
            continue
        if isinstance(value, str) and "," in value and str not in kinds:
            value = [part.strip() for part in value.split(",")]
        if isinstance(value, list | tuple):
            axes[key] = list(dict.fromkeys(map(as_number, value)))
            if not value or "" in value:
                raise UsageError(
                    f"{key} = {values[key]} holds an empty value: give a list such as a,b"
                )
    left = [nest(key, value) for key, value in values.items() if key not in axes]
    return replace(given, values=functools.reduce(merge, left, {})), axes


def _kinds(annotation: object) -> set[object]:
    """Return the types that a value may have."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, types.UnionType):
        return {kind for one in arguments for kind in _kinds(one)}
    return {origin or annotation}


def as_number(value: object) -> object:
    """Read a text as the number that a file would have, so that equal values are one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value) if isinstance(value, str) else value
    return value
