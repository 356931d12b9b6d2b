"""Grids of runs: what a study is asked for, and the runs that follow from it.

A configuration file may hold a ``grid``: lists of values by dotted key, all combinations of which
are run; or a list of such grids, one after the other.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, cast

from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import flatten, resolve, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.given import as_number, as_tree, without_grids
from ccfcpp.runs.paths import MAY_CHANGE, C, Json

Axes = Json
"""Values that distinguish a cell of the grid, by dotted key."""
Grid = Mapping[str, Sequence[object]]
"""Lists of values by dotted key."""


def config_hash(config: RunConfig, **others: object) -> str:
    """Hash what makes a run the run that it is; ``others`` stand for single values by their keys.

    Settings that may differ when a run is resumed are left out.
    """
    values = {key: own for key, own in values_of(config).items() if key not in MAY_CHANGE} | others
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Planned(Generic[C]):
    """One run of a study, with the values of its cell.

    Attributes:
        axes: What sets its cell apart.
        config: Its configuration.
        place: Its folder inside the study's, where that does not follow from its cell.
    """

    axes: Axes
    config: C
    place: Path | None = None

    @property
    def folder(self) -> Path:
        """Its folder inside the study's."""
        if self.place is not None:
            return self.place
        cell = ",".join(f"{key}={value}" for key, value in self.axes.items())
        return Path(cell.replace("/", "_")) / f"seed-{self.config.seed}"


@dataclass(frozen=True)
class Order:
    """What a study is asked for, from which its runs follow.

    Attributes:
        files: Settings from files, each over those before it, without their grids.
        values: Single values over the files.
        grids: Grids, none of which has a key of ``values``.
        seeds: Number of seeds of each cell.
        baseline: Method with which others are compared; None for the best.
    """

    files: Sequence[Tree] = ()
    values: Tree = field(default_factory=dict)
    grids: Sequence[Grid] = ({},)
    seeds: int = 1
    baseline: str | None = None

    @property
    def cells(self) -> list[Axes]:
        """All cells in the order of their keys and values, each once."""
        cells: list[Axes] = []
        for grid in self.grids:
            for combination in itertools.product(*grid.values()):
                cell = dict(zip(grid, combination, strict=True))
                if cell not in cells:
                    cells.append(cell)
        return cells

    def planned(
        self, kind: type[C], presets: str, axes: Callable[[C, Axes], Axes] = lambda _, cell: cell
    ) -> list[Planned[C]]:
        """Return all runs, each cell with several seeds.

        Args:
            kind: The kind of configurations.
            presets: Folder of the data sets' presets.
            axes: Returns what sets the runs of a cell apart from others; of cells that nothing sets
                apart the first is run.

        Raises:
            UsageError: A value is out of its range.
        """
        runs: list[Planned[C]] = []
        for cell in self.cells:
            config = resolve(kind, presets, *self.files, as_tree(cell), self.values)
            own = axes(config, cell)
            if own not in (run.axes for run in runs):
                seeds = range(config.seed, config.seed + self.seeds)
                runs += [Planned(own, config.model_copy(update={"seed": seed})) for seed in seeds]
        return runs


def ordered(layers: Sequence[Tree], values: Tree, seeds: int, axes: Grid | None = None) -> Order:
    """Return the order of a user's settings.

    A single value takes the place of an axis. Of a list of grids those remain that have the value;
    where none has it, it applies to all of them.

    Args:
        layers: Trees of settings, of which the last ``grid`` counts.
        values: Single values over them.
        seeds: Number of seeds of each cell.
        axes: Lists by dotted key that the user gave, in place of the grid's.

    Raises:
        UsageError: The grid is not made of lists.
    """
    grid: object = next((layer["grid"] for layer in reversed(layers) if "grid" in layer), {})
    grids = [{**one, **(axes or {})} for one in grids_of(grid)]
    # A flag's value is text, and as good as the number of a file.
    given = {key: as_number(str(own)) for key, own in flatten(values)}
    chosen = [
        one
        for one in grids
        if all(
            given[key] in map(as_number, map(str, one[key])) for key in one.keys() & given.keys()
        )
    ]
    free = [{key: own for key, own in one.items() if key not in given} for one in chosen or grids]
    return Order(without_grids(layers), values, free, seeds)


def grids_of(grid: object) -> list[Grid]:
    """Return the grids of a list, or the single grid.

    Raises:
        UsageError: The grid is not made of lists.
    """
    grids: list[object] = grid if isinstance(grid, list) and grid else [grid]
    for one in grids:
        if not isinstance(one, dict) or not all(
            isinstance(key, str) and isinstance(choices, list) and choices
            for key, choices in one.items()
        ):
            raise UsageError(
                "grid must hold lists by dotted key, such as 'partition.alpha: [0.05, 0.1]'"
            )
    return cast(list[Grid], grids)
