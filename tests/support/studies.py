"""Studies that are planned and not run."""

from collections.abc import Sequence
from pathlib import Path

from ccfcpp.core.config_layers import C
from ccfcpp.runs.paths import writable
from ccfcpp.studies.grids import PlannedRun, StudySpec
from ccfcpp.studies.study import Study


def planned_study(
    path: Path, runs: Sequence[PlannedRun[C]], spec: StudySpec | None = None
) -> Study[C]:
    """A study in a new folder."""
    study = Study(path, runs, spec)
    with writable(path):
        study.write_plan()
    return study
