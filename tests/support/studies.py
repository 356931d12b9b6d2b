"""Studies that are planned and not run."""

from collections.abc import Sequence
from pathlib import Path

from ccfcpp.runs.paths import C, writable
from ccfcpp.studies.grids import Order, Planned
from ccfcpp.studies.study import Study


def planned_study(path: Path, runs: Sequence[Planned[C]], order: Order | None = None) -> Study[C]:
    """A study in a new folder."""
    study = Study(path, runs, order)
    with writable(path):
        study.write_plan()
    return study
