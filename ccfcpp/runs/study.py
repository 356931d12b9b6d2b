"""Many runs in one folder: a grid of settings, each with several seeds, and one table of them.

A configuration file may hold a ``grid``: lists of values by dotted key, all combinations of which
are run; or a list of such grids, one after the other. A finished run is never run again.
"""

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, cast

import yaml

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, merge, read_yaml, resolve, validate
from ccfcpp.core.errors import StoppedError, UsageError
from ccfcpp.core.files import write_whole
from ccfcpp.core.tables import as_csv
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.given import as_tree, without_grids
from ccfcpp.runs.paths import MAY_CHANGE, C, Json, RunPaths, writable

if TYPE_CHECKING:
    from ccfcpp.runs.experiment import AnyExperiment

Axes = Json
"""Values that distinguish a cell of the grid, by dotted key."""
Row = Json


@dataclass(frozen=True)
class Planned(Generic[C]):
    """One run of a study, with the values of its cell."""

    axes: Axes
    config: C

    @property
    def folder(self) -> Path:
        """Its folder inside the study's."""
        cell = ",".join(f"{key}={value}" for key, value in self.axes.items())
        return Path(cell.replace("/", "_")) / f"seed-{self.config.seed}"


def grid_cells(grid: object, values: Tree) -> list[Axes]:
    """Return all cells of a grid, or of a list of grids, in the order of their keys and values.

    A single value from the user takes the place of an axis. Of a list of grids those remain that
    have the value; where none has it, it applies to all of them.

    Args:
        grid: Lists by dotted key; empty for a single cell without axes.
        values: Single values of the user.

    Raises:
        UsageError: The grid is not made of lists.
    """
    grids = _grids(grid)
    given = dict(flatten(values))
    chosen = [one for one in grids if _has_values(one, given)] or grids
    cells: list[Axes] = []
    for one in chosen:
        free = {key: choices for key, choices in one.items() if key not in given}
        for combination in itertools.product(*free.values()):
            cell = dict(zip(free, combination, strict=True))
            if cell not in cells:
                cells.append(cell)
    return cells


def _grids(grid: object) -> list[Axes]:
    """Return the grids of a list, or the single grid."""
    grids: list[object] = grid if isinstance(grid, list) and grid else [grid]
    for one in grids:
        if not isinstance(one, dict) or not all(
            isinstance(key, str) and isinstance(choices, list) and choices
            for key, choices in one.items()
        ):
            raise UsageError(
                "grid must hold lists by dotted key, such as 'partition.alpha: [0.05, 0.1]'"
            )
    return cast(list[Axes], grids)


def _has_values(grid: Mapping[str, Sequence[object]], given: Mapping[str, object]) -> bool:
    return all(
        any(_is_same(choice, given[key]) for choice in choices)
        for key, choices in grid.items()
        if key in given
    )


def _is_same(value: object, text: object) -> bool:
    """Return whether a value of a file equals that of a flag, which is text."""
    try:
        return float(str(value)) == float(str(text))
    except ValueError:
        return str(value) == str(text)


def plan_grid(
    kind: type[C],
    presets: str,
    layers: Sequence[Tree],
    values: Tree,
    seeds: int,
    axes: Mapping[str, Sequence[object]] | None = None,
) -> list[Planned[C]]:
    """Return all runs of a grid, each cell with several seeds.

    Args:
        kind: The kind of configurations.
        presets: Folder of the data sets' presets.
        layers: Trees of settings, of which the last ``grid`` counts.
        values: Single values over them.
        seeds: Number of seeds of each cell.
        axes: Lists by dotted key that the user gave, in place of the grid's.

    Raises:
        UsageError: The grid is not made of lists, or a value is out of its range.
    """
    grid: object = next((layer["grid"] for layer in reversed(layers) if "grid" in layer), {})
    planned = []
    for cell in grid_cells([one | dict(axes or {}) for one in _grids(grid)], values):
        config = resolve(kind, presets, *without_grids(layers), as_tree(cell), values)
        for number in range(seeds):
            of_seed = config.model_copy(update={"seed": config.seed + number})
            planned.append(Planned(cell, of_seed))
    return planned


class Study(Generic[C]):
    """Runs in one folder."""

    def __init__(self, path: Path, runs: Sequence[Planned[C]]) -> None:
        self.path = path
        self.runs = list(runs)

    @staticmethod
    def plan_of(path: Path) -> Path:
        """Return the file with the plan in a study's folder."""
        return RunPaths(path).study

    @classmethod
    def create(cls, path: Path, runs: Sequence[Planned[C]]) -> "Study[C]":
        """Start a study in a new or empty folder.

        Raises:
            UsageError: The folder holds something, or cannot be made.
        """
        RunFolder(path).refuse_if_taken()
        listed = [{"axes": run.axes, "config": run.config.model_dump(mode="json")} for run in runs]
        with writable(path):
            text = yaml.safe_dump({"runs": listed}, sort_keys=False, allow_unicode=True)
            write_whole(cls.plan_of(path), text.encode())
        return cls(path, runs)

    @classmethod
    def reopen(cls, path: Path, kind: type[C], changes: Tree) -> "Study[C]":
        """Resume a study, with changes that every run allows, such as the device.

        Raises:
            UsageError: The plan is damaged.
        """
        plan = read_yaml(cls.plan_of(path))
        try:
            listed = [(dict(entry["axes"]), dict(entry["config"])) for entry in plan["runs"]]
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{cls.plan_of(path)} is damaged ({error}): start again with another --out"
            ) from error
        runs = [Planned(axes, validate(kind, merge(config, changes))) for axes, config in listed]
        return cls(path, runs)

    def run(
        self,
        make: Callable[[C], "AnyExperiment"],
        run_one: Callable[[str, "AnyExperiment", RunFolder], object],
        finished: Callable[[], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Run what is not finished, one run after the other.

        Args:
            make: Makes the experiment of a configuration.
            run_one: Runs an experiment, under a title, in a folder.
            finished: Called first, and after each run.
            should_stop: Called before each run.

        Raises:
            StoppedError: ``should_stop`` returned true.
        """
        finished()
        for number, planned in enumerate(self.runs):
            if self.is_finished(planned):
                continue
            if should_stop():
                raise StoppedError
            title = f"run {number + 1} of {len(self.runs)}: {planned.folder}"
            run_one(title, *self.opened(planned, make))
            finished()

    def folder(self, planned: Planned[C]) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.path / planned.folder)

    def is_finished(self, planned: Planned[C]) -> bool:
        """Return whether a run has its summary."""
        return self.folder(planned).summary.is_file()

    def opened(
        self, planned: Planned[C], make: Callable[[C], "AnyExperiment"]
    ) -> "tuple[AnyExperiment, RunFolder]":
        """Return a run's experiment and its folder, which is made or reopened."""
        experiment = make(planned.config)
        folder = self.folder(planned)
        if not folder.config.is_file():
            return experiment, RunFolder.create(folder.path, planned.config)
        folder = RunFolder.reopen(folder.path)
        folder.refuse_other_config(planned.config)
        return experiment, folder

    def results(self) -> list[tuple[Axes, Row]]:
        """Return axes and summary of each finished run, in the order of the plan.

        Raises:
            UsageError: A summary is damaged.
        """
        done = [planned for planned in self.runs if self.is_finished(planned)]
        return [(planned.axes, self.folder(planned).read_summary()) for planned in done]

    def write_table(self, rows: Sequence[Row], markdown: str) -> None:
        """Write a table of the cells, to ``table.csv`` and ``table.md``."""
        write_whole(self.path / "table.csv", as_csv(rows).encode())
        write_whole(self.path / "table.md", markdown.encode())


def cell_rows(results: Sequence[tuple[Axes, Row]], measures: Sequence[str]) -> list[Row]:
    """Return a row for each cell: its axes, and each measure's mean and deviation over the seeds.

    The deviation is that of a sample (n − 1), and None for a single run. Measures are keys of the
    summaries.
    """
    of_cells: list[tuple[Axes, list[Row]]] = []
    for axes, summary in results:
        if not of_cells or axes != of_cells[-1][0]:
            of_cells.append((axes, []))
        of_cells[-1][1].append(summary)
    return [{**axes, **_means(of_cell, measures)} for axes, of_cell in of_cells]


def _means(summaries: Sequence[Row], measures: Sequence[str]) -> Row:
    row: Row = {"runs": len(summaries)}
    for measure in measures:
        known = [s[measure] for s in summaries if s.get(measure) is not None]
        row[measure] = statistics.fmean(known) if known else None
        row[f"{measure} deviation"] = statistics.stdev(known) if len(known) > 1 else None
    return row


def display(row: Row, measures: Sequence[str]) -> dict[str, str]:
    """Format a row: its axes, and measures with their deviations."""
    figures = {*measures, *(f"{measure} deviation" for measure in measures)}
    shown = {key: str(value) for key, value in row.items() if key not in figures}
    for measure in measures:
        mean, deviation = row[measure], row[f"{measure} deviation"]
        text = "" if mean is None else f"{mean:.4g}"
        shown[measure] = text if deviation is None else f"{text} ± {deviation:.2g}"
    return shown


def reopen_study(path: Path, kind: type[C], changes: Tree, seeds: int) -> Study[C]:
    """Resume a study as it was planned.

    Raises:
        UsageError: The user gave more than 1 of ``seeds``, or other ``changes`` than
            ``MAY_CHANGE``.
    """
    other = sorted({key for key, _ in flatten(changes)} - MAY_CHANGE)
    if other or seeds > 1:
        raise UsageError(
            f"the runs in {path} are resumed as they were planned: leave out "
            f"{', '.join(other) or '--seeds'}, or give another --out"
        )
    return Study.reopen(path, kind, changes)


def as_markdown(shown: Sequence[Mapping[str, str]]) -> str:
    """Format rows of text as a Markdown table."""
    names = list(dict.fromkeys(name for row in shown for name in row))
    lines = [names, ["---"] * len(names), *([row.get(name, "") for name in names] for row in shown)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
