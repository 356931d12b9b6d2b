"""Many runs in one folder: a grid of settings, each with several seeds, and one table of them.

A configuration file may hold a ``grid``: lists of values by dotted key, all combinations of which
are run; or a list of such grids, one after the other. A finished run is never run again.
"""

import csv
import io
import itertools
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import yaml

from ccfcpp.config_layers import Tree, flatten, merge, nest, read_yaml, validate
from ccfcpp.engine.files import write_whole
from ccfcpp.errors import UsageError
from ccfcpp.experiment import Experiment
from ccfcpp.run_folder import C, RunFolder

Axes = dict[str, Any]
"""What sets a cell of the grid apart: values by dotted key."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Planned(Generic[C]):
    """One run of a study.

    Attributes:
        axes: What sets its cell apart.
        config: Its configuration.
    """

    axes: Axes
    config: C

    @property
    def folder(self) -> Path:
        """Its folder inside the study's."""
        cell = ",".join(f"{key}={_plain(value)}" for key, value in self.axes.items())
        return Path(cell.replace("/", "_")) / f"seed-{self.config.seed}"


def grid_cells(grid: object, values: Tree) -> list[Axes]:
    """All cells of a grid, or of a list of grids, in the order of their keys and values.

    Args:
        grid: Lists by dotted key; empty for a single cell without axes.
        values: What the user gave as single values: such a key is no axis any more.

    Raises:
        UsageError: The grid is not made of lists.
    """
    grids = grid if isinstance(grid, list) else [grid]
    given = {key for key, _ in flatten(values)}
    cells: list[Axes] = []
    for grid in grids:
        if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
            raise UsageError(
                "grid must hold lists by dotted key, such as 'partition.alpha: [0.05, 0.1]'"
            )
        free = {key: choices for key, choices in grid.items() if key not in given}
        combinations = (
            dict(zip(free, values, strict=True)) for values in itertools.product(*free.values())
        )
        cells += [cell for cell in combinations if cell not in cells]
    return cells


def as_tree(axes: Axes) -> Tree:
    """A cell as a tree of settings."""
    tree: Tree = {}
    for key, value in axes.items():
        tree = merge(tree, nest(key, value))
    return tree


class Study(Generic[C]):
    """Runs in one folder.

    Args:
        path: The folder.
        runs: What is to be run.
    """

    def __init__(self, path: Path, runs: Sequence[Planned[C]]) -> None:
        self.path = path
        self.runs = list(runs)

    @staticmethod
    def plan_of(path: Path) -> Path:
        """The file in which a study's folder holds its plan."""
        return path / "study.yaml"

    @classmethod
    def create(cls, path: Path, runs: Sequence[Planned[C]]) -> "Study[C]":
        """Start a study in a new or empty folder.

        Raises:
            UsageError: The folder holds something, or cannot be made.
        """
        RunFolder(path).refuse_if_taken()
        listed = [{"axes": run.axes, "config": run.config.model_dump(mode="json")} for run in runs]
        try:
            path.mkdir(parents=True, exist_ok=True)
            text = yaml.safe_dump({"runs": listed}, sort_keys=False, allow_unicode=True)
            write_whole(cls.plan_of(path), text.encode())
        except OSError as error:
            raise UsageError(
                f"output folder {path} cannot be written ({error.strerror}): give another --out"
            ) from error
        return cls(path, runs)

    @classmethod
    def reopen(cls, path: Path, kind: type[C], changes: Tree) -> "Study[C]":
        """Go on with a study.

        Args:
            path: Its folder.
            kind: The kind of its configurations.
            changes: What may differ from run to run, such as the device.

        Raises:
            UsageError: The plan is damaged.
        """
        plan = read_yaml(cls.plan_of(path))
        try:
            runs = [
                Planned(entry["axes"], validate(kind, merge(entry["config"], changes)))
                for entry in plan["runs"]
            ]
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{cls.plan_of(path)} is damaged ({error}): start again with another --out"
            ) from error
        return cls(path, runs)

    def run(
        self,
        make: Callable[[C], Experiment[Any]],
        run_one: Callable[[str, Experiment[Any], RunFolder], dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Run what is not finished, and write the table.

        Args:
            make: Makes the experiment of a configuration.
            run_one: Runs it, under a title, in a folder, and gives the summary.

        Returns:
            The summaries, in order.
        """
        summaries: list[dict[str, Any]] = []
        for number, planned in enumerate(self.runs):
            folder = RunFolder(self.path / planned.folder)
            if folder.summary.is_file():
                summaries.append(json.loads(folder.summary.read_bytes()))
                continue
            experiment = make(planned.config)
            if folder.config.is_file():
                folder = RunFolder.reopen(folder.path)
                folder.refuse_other_config(planned.config)
            else:
                folder = RunFolder.create(folder.path, planned.config)
            title = f"run {number + 1} of {len(self.runs)}: {planned.folder}"
            summaries.append(run_one(title, experiment, folder))
        return summaries

    def table(self, summaries: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> list[Row]:
        """One row a cell: its axes, and each measure's mean and deviation over the seeds.

        The deviation is that of a sample (n − 1), and None for a single run. The table is written
        to ``table.csv`` and ``table.md`` too.
        """
        rows: list[Row] = []
        for cell in self._cells():
            of_cell = [
                summary
                for run, summary in zip(self.runs, summaries, strict=True)
                if run.axes == cell
            ]
            row: Row = {**cell, "runs": len(of_cell)}
            for measure in measures:
                known = [s[measure] for s in of_cell if s.get(measure) is not None]
                row[measure] = statistics.fmean(known) if known else None
                row[f"{measure} deviation"] = statistics.stdev(known) if len(known) > 1 else None
            rows.append(row)
        write_whole(self.path / "table.csv", _as_csv(rows).encode())
        write_whole(self.path / "table.md", _as_markdown(rows, measures).encode())
        return rows

    def _cells(self) -> list[Axes]:
        cells: list[Axes] = []
        for run in self.runs:
            if run.axes not in cells:
                cells.append(run.axes)
        return cells


def display(row: Row, measures: Sequence[str]) -> dict[str, str]:
    """A row for people: measures with their deviations."""
    shown = {
        key.rpartition(".")[2] if key.count(".") else key: _plain(value)
        for key, value in row.items()
        if not any(key in (m, f"{m} deviation") for m in measures)
    }
    for measure in measures:
        mean, deviation = row[measure], row[f"{measure} deviation"]
        text = "" if mean is None else f"{mean:.4g}"
        shown[measure] = text if deviation is None else f"{text} ± {deviation:.2g}"
    return shown


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _as_markdown(rows: Sequence[Row], measures: Sequence[str]) -> str:
    shown = [display(row, measures) for row in rows]
    names = list(dict.fromkeys(name for row in shown for name in row))
    lines = [names, ["---"] * len(names), *([row.get(name, "") for name in names] for row in shown)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
