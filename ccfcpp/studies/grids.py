"""Grids of settings: a study's spec, and the runs that it asks for.

A configuration file may hold a ``grid``: lists of values by dotted key, all combinations of which
are run (a combination is a *cell*, a key of the grid an *axis*); or a list of such grids.
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
from ccfcpp.core.config_layers import C, Layers, flatten, merge, resolve, unflatten, values_of
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.runs.paths import MAY_CHANGE, Json

Axes = Json
"""Settings that distinguish a cell (combination of settings) from the others, by dotted key."""
Grid = Mapping[str, Sequence[object]]
"""Lists of values by dotted key."""


def config_hash(config: RunConfig, **others: object) -> str:
    """Return the SHA-256 of the settings that define a run, with values replaced by ``others``.

    Settings that may change when a run is resumed, such as the device, are left out.
    """
    values = {key: own for key, own in values_of(config).items() if key not in MAY_CHANGE} | others
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class PlannedRun(Generic[C]):
    """Planned run of a study.

    Attributes:
        axes: The settings that distinguish its cell (combination of settings), by dotted key.
        config: Its configuration.
        place: Its folder relative to the study's; None: the one named after ``axes`` and seed.
    """

    axes: Axes
    config: C
    place: Path | None = None

    @property
    def folder(self) -> Path:
        """The run's folder, relative to the study's."""
        if self.place is not None:
            return self.place
        cell = ",".join(f"{key}={value}" for key, value in self.axes.items())
        return Path(cell.replace("/", "_")) / f"seed-{self.config.seed}"


@dataclass(frozen=True)
class StudySpec:
    """Everything that was asked of a study: settings, grids of values, and seeds.

    Attributes:
        files: Settings from files, without their grids; each file overrides those before it.
        values: Single values, which override the files.
        grids: Lists of values by dotted key; no key of ``values`` is in them.
        seeds: Number of seeds of each cell (combination of the grids' values).
        baseline: Method that the others are tested against; None: the best one.
    """

    files: Sequence[Tree] = ()
    values: Tree = field(default_factory=dict)
    grids: Sequence[Grid] = ({},)
    seeds: int = 1
    baseline: str | None = None

    def layers(self, cell: Axes) -> Layers:
        """Return the settings of a cell's runs in layers; each overrides those before it."""
        return [*self.files, unflatten(cell), self.values]

    @property
    def cells(self) -> list[Axes]:
        """All cells (combinations of each grid's values), without duplicates."""
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
        """Plan a run for each cell (combination of the grids' values) and seed.

        Args:
            kind: Class of the configurations.
            presets: Folder of the data sets' presets: ``cluster`` or ``classify``.
            axes: Maps a cell's configuration and values to the settings that distinguish its runs;
                if they are equal for several cells, only the first is run.

        Raises:
            UsageError: A value is not allowed.
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
    """Separate axes (settings to vary: lists for keys that take one value) from other settings.

    Args:
        kind: Class of the configurations.
        layers: The user's settings. In the last layer a text with commas counts as a list if the
            key is ``method``, or does not take text.

    Returns:
        The other settings, and the lists by dotted key.

    Raises:
        UsageError: A list is empty, or has an empty value.
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
    """Return the types that a field's annotation allows, such as ``{int, NoneType}``."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kinds(arguments[0])
    if origin in (Union, types.UnionType):
        return {kind for one in arguments for kind in _kinds(one)}
    return {origin or annotation}


def parse_number(value: object) -> object:
    """Convert a text to an int or float if it is one, as YAML does; return others unchanged."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value) if isinstance(value, str) else value
    return value


def without_grids(layers: Layers) -> Layers:
    """Return layers of settings without the key ``grid``."""
    return [
        type(layer)({key: value for key, value in layer.items() if key != "grid"})
        for layer in layers
    ]


def study_spec(kind: type[RunConfig], layers: Layers, seeds: int) -> StudySpec:
    """Make the spec of a study: the user's settings, split in single values and grids.

    A single value replaces an axis of the grid. If there are several grids, those with other values
    for its key are dropped, unless all would be. A list for a key that takes a single value is an
    axis, and replaces the grid's.

    Args:
        kind: Class of the configurations.
        layers: The user's settings; the last grid in a file counts.
        seeds: Number of seeds of each cell.

    Raises:
        UsageError: A grid has values that are not lists.
    """
    (*files, values), axes = split_axes(kind, layers)
    grid: object = next((layer["grid"] for layer in reversed(files) if "grid" in layer), {})
    grids = [{**one, **axes} for one in list_grids(grid)]
    # A flag's value is text, and equals a number in a file.
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
    """Check the value of ``grid``, and return it as a list of grids.

    Raises:
        UsageError: A grid has values that are not lists.
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
