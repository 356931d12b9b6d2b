"""Grids of runs: what a study was asked for (its order), and the runs that follow.

A configuration file may hold a ``grid``: lists of values by dotted key, all combinations of which
are run; or a list of such grids, one after the other.
"""

import hashlib
import itertools
import json
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, Union, cast, get_args, get_origin

from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import Layers, flatten, merge, resolve, unflatten, values_of
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.runs.paths import MAY_CHANGE, C, Json

Axes = Json
"""Values that distinguish a cell of the grid, by dotted key."""
Grid = Mapping[str, Sequence[object]]
"""Lists of values by dotted key."""


def config_hash(config: RunConfig, **others: object) -> str:
    """Return a hash of the settings that define a run; ``others`` replace values by their keys.

    Settings that may differ when a run is resumed are left out.
    """
    values = {key: own for key, own in values_of(config).items() if key not in MAY_CHANGE} | others
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class PlannedRun(Generic[C]):
    """A planned run of a study: its configuration and its values on the study's axes.

    Attributes:
        axes: The settings that distinguish its cell, by dotted key.
        config: Its configuration.
        place: Its folder inside the study's, if it does not follow from its cell.
    """

    axes: Axes
    config: C
    place: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder of the run inside the study's."""
        if self.place is not None:
            return self.place
        cell = ",".join(f"{key}={value}" for key, value in self.axes.items())
        return Path(cell.replace("/", "_")) / f"seed-{self.config.seed}"


@dataclass(frozen=True)
class StudySpec:
    """Everything a study was asked for: settings, grids of values, and seeds.

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

    def layers(self, cell: Axes) -> Layers:
        """Return the settings of a cell's runs."""
        return [*self.files, unflatten(cell), self.values]

    @property
    def cells(self) -> list[Axes]:
        """All cells (combinations of the grids' values), each once, in the grids' order."""
        cells: list[Axes] = []
        for grid in self.grids:
            for combination in itertools.product(*grid.values()):
                cell = dict(zip(grid, combination, strict=True))
                if cell not in cells:
                    cells.append(cell)
        return cells

    def plan_runs(
        self, kind: type[C], presets: str, axes: Callable[[C, Axes], Axes] = lambda _, cell: cell
    ) -> list[PlannedRun[C]]:
        """Return all runs, each cell with several seeds.

        Args:
            kind: The kind of configurations.
            presets: Folder of the data sets' presets.
            axes: Returns the values that distinguish a cell's runs; of cells with equal values only
                the first is run.

        Raises:
            UsageError: A value is out of its range.
        """
        runs: list[PlannedRun[C]] = []
        for cell in self.cells:
            config = resolve(kind, presets, *self.layers(cell))
            own = axes(config, cell)
            if own not in (run.axes for run in runs):
                seeds = range(config.seed, config.seed + self.seeds)
                runs += [
                    PlannedRun(own, config.model_copy(update={"seed": seed})) for seed in seeds
                ]
        return runs


def split_axes(kind: type[RunConfig], layers: Layers) -> tuple[Layers, dict[str, Sequence[object]]]:
    """Split off lists that were given for keys with a single value: they are axes of a study.

    Args:
        kind: The kind of configurations.
        layers: The user's settings; a list may be a text with commas, except for a key whose value
            may be any text but a method's name.

    Returns:
        The other settings, and the lists by dotted key.

    Raises:
        UsageError: A list holds an empty value, or nothing.
    """
    *files, single = layers
    values = dict(flatten(single))
    fields = kind.known_fields(merge(*layers))
    axes: dict[str, Sequence[object]] = {}
    for key, value in values.items():
        kinds = _kinds(fields[key].annotation) if key in fields else {list}
        if key in MAY_CHANGE or kinds & {list, tuple, dict}:
            continue
        if isinstance(value, str) and "," in value and (key == "method" or str not in kinds):
            value = [part.strip() for part in value.split(",")]
        if isinstance(value, list | tuple):
            axes[key] = list(dict.fromkeys(map(parse_number, value)))
            if not value or "" in value:
                raise UsageError(
                    KeyValue(key, values[key]), " holds an empty value: give a list such as a,b"
                )
    return [*files, unflatten({key: values[key] for key in values if key not in axes})], axes


def _kinds(annotation: object) -> set[object]:
    """Return the types that a value may have."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, types.UnionType):
        return {kind for one in arguments for kind in _kinds(one)}
    return {origin or annotation}


def parse_number(value: object) -> object:
    """Parse a text as the number that a file would have, so that equal values are one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value) if isinstance(value, str) else value
    return value


def without_grids(layers: Layers) -> Layers:
    """Return layers of settings without their grids."""
    return [
        type(layer)({key: value for key, value in layer.items() if key != "grid"})
        for layer in layers
    ]


def study_spec(kind: type[RunConfig], layers: Layers, seeds: int) -> StudySpec:
    """Return the order of a study: the user's settings, split in single values and grids.

    A single value replaces an axis. Of a list of grids, those that have the value remain;
    if none has it, it applies to all of them. Lists for keys with a single value are axes, in
    place of the grid's.

    Args:
        kind: The kind of configurations.
        layers: The user's settings; of files' grids the last one counts.
        seeds: Number of seeds of each cell.

    Raises:
        UsageError: The grid does not consist of lists.
    """
    (*files, values), axes = split_axes(kind, layers)
    grid: object = next((layer["grid"] for layer in reversed(files) if "grid" in layer), {})
    grids = [{**one, **axes} for one in list_grids(grid)]
    # A flag's value is text, and as good as the number of a file.
    given = {key: parse_number(str(own)) for key, own in flatten(values)}
    chosen = [
        one
        for one in grids
        if all(
            given[key] in map(parse_number, map(str, one[key])) for key in one.keys() & given.keys()
        )
    ]
    free = [{key: own for key, own in one.items() if key not in given} for one in chosen or grids]
    return StudySpec(without_grids(files), values, free, seeds)


def list_grids(grid: object) -> list[Grid]:
    """Return the grids of a list, or the single grid.

    Raises:
        UsageError: The grid does not consist of lists.
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
