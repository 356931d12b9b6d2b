"""Studies: many runs in one folder, with one table. Finished runs are never repeated."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import C, merge, read_yaml, to_yaml, validate
from ccfcpp.core.errors import FederationError, StoppedError, UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.core.tables import as_csv
from ccfcpp.core.torchrun import process_count
from ccfcpp.core.units import list_first
from ccfcpp.runs.folder import RunFolder
from ccfcpp.runs.paths import Json, RunPaths
from ccfcpp.runs.pipeline import Pipeline
from ccfcpp.studies.grids import Axes, PlannedRun, StudySpec
from supervised.api import CLASSIFICATION

if TYPE_CHECKING:
    from ccfcpp.runs.run import AnyLocalRun, AnyRun


_MOST_NAMES = 5
"""Largest number of failed runs that an error message names for one reason."""


def make_run(config: RunConfig) -> "AnyLocalRun":
    """Construct the run of a configuration: clustering or classification, by its type."""
    return _pipeline(type(config).__name__).make(config, None)


def remake_run(run: Tree) -> "AnyLocalRun":
    """Construct a copy of the first torchrun process's run, from its ``kind`` and ``config``."""
    return _pipeline(run["kind"]).remake(run)


def _pipeline(kind: str) -> "Pipeline[Any, AnyLocalRun]":
    """Return the pipeline of runs by the name of their configuration's class."""
    return CLASSIFICATION if kind == CLASSIFICATION.kind.__name__ else CLUSTERING


def refuse_failures(failed: Mapping[str, Sequence[Path]], runs: int) -> None:
    """Raise ``FederationError`` if runs have failed: folders by reason, of so many ``runs``."""
    if failed:
        named = "; ".join(
            f"{list_first(folders, _MOST_NAMES)}: {reason}" for reason, folders in failed.items()
        )
        raise FederationError(f"{sum(map(len, failed.values()))} of {runs} runs failed: {named}")


@dataclass
class Study(Generic[C]):
    """Study: planned and finished runs in one folder.

    Attributes:
        path: The study's folder.
        runs: All its runs, in the order of the tables' rows.
        spec: What was asked for; None if an earlier version of ccfcpp planned the study.
    """

    path: Path
    runs: Sequence[PlannedRun[C]]
    spec: StudySpec | None = None

    @property
    def baseline(self) -> str | None:
        """Method that the others are tested against; None: the best one."""
        return self.spec.baseline if self.spec else None

    def compare_with(self, baseline: str) -> None:
        """Set the method that the others are tested against.

        Raises:
            UsageError: An earlier version of ccfcpp planned the study.
        """
        if self.spec is None:
            raise UsageError(f"an earlier version planned {self.path}: leave the baseline out")
        self.spec = replace(self.spec, baseline=baseline)

    def write_plan(self) -> None:
        """Write ``study.yaml``: the spec and the planned runs."""
        listed = [
            {"axes": run.axes, "config": run.config.model_dump(mode="json")}
            | ({"folder": str(run.place)} if run.place else {})
            for run in self.runs
        ]
        # By way of JSON, since YAML's safe form has no tuples.
        asked = {"asked": json.loads(json.dumps(asdict(self.spec)))} if self.spec else {}
        write_atomically(RunPaths(self.path).study, to_yaml({**asked, "runs": listed}).encode())

    @classmethod
    def reopen(cls, path: Path, kind: type[C], changes: Tree) -> "Study[C]":
        """Load a study from its folder; ``kind`` is the class of its configurations.

        ``changes`` are settings that may change in a resumed run, such as the device.

        Raises:
            UsageError: There is no plan, or it is damaged.
        """
        file = RunPaths(path).study
        if not file.is_file():
            raise UsageError(
                f"there is no study to resume in {path} (no {file.name}): drop --resume, or give "
                "the folder of a study with --out"
            )
        plan = read_yaml(file)
        try:
            spec = StudySpec(**plan["asked"]) if "asked" in plan else None
            listed = [
                (dict(one["axes"]), dict(one["config"]), one.get("folder")) for one in plan["runs"]
            ]
            if not listed:
                raise ValueError("it has no runs")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{file} is damaged ({error}): start again with another --out"
            ) from error
        runs = [
            PlannedRun(axes, validate(kind, merge(config, changes)), Path(place) if place else None)
            for axes, config, place in listed
        ]
        return cls(path, runs, spec)

    def run(
        self,
        run_one: Callable[[str, "AnyRun", RunFolder], object],
        finished: Callable[[], object] = lambda: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run all unfinished runs, one after the other; one that fails does not stop the others.

        Args:
            run_one: Called with a title, a run and its folder; it makes the run.
            finished: Called once at the beginning, and after each run.
            should_stop: Called before each run; the study stops if it returns true.

        Raises:
            StoppedError: ``should_stop`` returned true.
            FederationError: Some runs failed (the message names them); all others are finished.
        """
        finished()
        unfinished = sum(not self.is_finished(planned) for planned in self.runs)
        failed: dict[str, list[Path]] = {}
        for number, planned in enumerate(self.runs):
            if self.is_finished(planned):
                continue
            if should_stop():
                raise StoppedError
            title = f"run {number + 1} of {len(self.runs)}: {planned.folder}"
            try:
                run_one(title, *self.open_run(planned))
            except FederationError as error:
                if process_count() > 1:  # The others may be in the middle of the run.
                    raise
                failed.setdefault(str(error), []).append(planned.folder)
            finished()
        refuse_failures(failed, unfinished)

    def folder(self, planned: PlannedRun[C]) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.path / planned.folder)

    def is_finished(self, planned: PlannedRun[C]) -> bool:
        """Return whether a run is finished: whether its ``summary.json`` exists."""
        return self.folder(planned).summary.is_file()

    def open_run(self, planned: PlannedRun[C]) -> "tuple[AnyRun, RunFolder]":
        """Construct a planned run, and create its folder or reopen it; return both."""
        run = make_run(planned.config)
        folder = self.folder(planned)
        if not folder.config.is_file():
            return run, RunFolder.create(folder.path, planned.config)
        folder = RunFolder.reopen(folder.path)
        folder.refuse_other_config(planned.config)
        return run, folder

    def results(self) -> list[tuple[Axes, Json]]:
        """Return each finished run's axes (distinguishing settings) and summary, in plan order.

        Raises:
            UsageError: A summary is damaged.
        """
        done = [planned for planned in self.runs if self.is_finished(planned)]
        return [(planned.axes, self.folder(planned).read_summary()) for planned in done]

    def write_table(self, rows: Sequence[Json], markdown: str, latex: str) -> None:
        """Write ``table.csv`` from rows of values, and ``table.md`` and ``table.tex`` from text."""
        for name, text in (("csv", as_csv(rows)), ("md", markdown), ("tex", latex)):
            write_atomically(self.path / f"table.{name}", text.encode())
