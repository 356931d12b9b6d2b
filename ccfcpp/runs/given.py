"""The settings that a user gave for a run, and the check that each of them counts."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccfcpp.core import relevance
from ccfcpp.core.config import MethodConfig, Tree
from ccfcpp.core.config_layers import merge, nest


def as_tree(values: Mapping[str, object]) -> Tree:
    """Values, nested or by dotted key, as a tree of settings; those that are None are left out."""
    trees = (nest(key, value) for key, value in values.items() if value is not None)
    return functools.reduce(merge, trees, {})


def without_grids(layers: Sequence[Tree]) -> list[Tree]:
    """Layers of settings without their grids."""
    return [{key: value for key, value in layer.items() if key != "grid"} for layer in layers]


@dataclass(frozen=True)
class Given:
    """Settings as a user gave them.

    Attributes:
        files: Settings from files, each over those before it.
        values: Single values, over the files.
        rounds: The number of rounds, whichever key of the system it belongs to; None: not given.
        flags: The flags that stand for keys, but for keys that were given by ``--set``.
    """

    files: tuple[Tree, ...] = ()
    values: Tree = field(default_factory=dict)
    rounds: object = None
    flags: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(settings: Mapping[str, object] | None) -> Given:
        """Single values, as ``as_tree`` takes them."""
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
        """The settings of a single run.

        Args:
            axes: The values of one cell of the grid.
        """
        return replace(self, files=(*without_grids(self.files), as_tree(axes or {})))

    def above(self, *files: Tree) -> Given:
        """The same over other files."""
        return replace(self, files=(*files, *self.files))

    def under(self, key: str, value: object) -> Given:
        """The same with another single value under those that were given."""
        return replace(self, values=merge(nest(key, value), self.values))


def refuse_idle(
    given: Given,
    configs: Sequence[MethodConfig],
    presets: str,
    axes: Mapping[str, object] | None = None,
) -> None:
    """Refuse single values that change nothing.

    This is the one check for commands, functions and estimators.

    Args:
        given: What the user gave.
        configs: The configurations of all runs that it led to.
        presets: Folder of the data sets' presets.
        axes: Lists that the user gave, by dotted key.

    Raises:
        UsageError: In one line, the first such value, and what would give it an effect.
    """
    values = merge(given.values, as_tree(axes or {}))
    relevance.refuse_idle(configs, presets, without_grids(given.files), values, given.flags)
