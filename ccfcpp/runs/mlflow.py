"""Runs in MLflow: settings as parameters, and the numbers of each round as metrics."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from ccfcpp.core.files import write_whole
from ccfcpp.runs.paths import Json, RunPaths
from ccfcpp.runs.tracking import Line, scalars

_EXPERIMENT = "ccfcpp"
_MOST_AT_ONCE = 100
"""Largest number of parameters that MLflow takes at once."""


class MlflowLog:
    """A run in MLflow, with which later sessions go on.

    It is where MLflow is told to write (``$MLFLOW_TRACKING_URI``), else in a local store in the
    working directory. Rounds that are run again are there twice, with the same numbers.
    """

    def __init__(self, run: Path, settings: Json) -> None:
        self.file = RunPaths(run).mlflow
        self.name = str(run)
        self.settings = settings
        self._run: tuple[Any, str] | None = None

    def log_round(self, line: Line) -> None:
        """Log the numbers of a round; the first one begins the run, or goes on with it."""
        client, run = self._run = self._run or self._begun()
        metric, now = library().entities.Metric, int(time.time() * 1000)
        metrics = [
            metric(name.replace(" ", "_"), float(value), now, line["round"])
            for name, value in scalars(line).items()
            if math.isfinite(value)
        ]
        client.log_batch(run, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished; a later session may go on with it."""
        if self._run is not None:
            client, run = self._run
            client.set_terminated(run)

    def _begun(self) -> tuple[Any, str]:
        mlflow = library()
        client = mlflow.MlflowClient()
        if self.file.is_file():
            run = str(json.loads(self.file.read_text())["run_id"])
            client.update_run(run, status="RUNNING")
            return client, run
        found = client.get_experiment_by_name(_EXPERIMENT)
        of = found.experiment_id if found else client.create_experiment(_EXPERIMENT)
        run = str(client.create_run(of, run_name=self.name).info.run_id)
        write_whole(self.file, json.dumps({"run_id": run}).encode())
        kind = mlflow.entities.Param
        known = [kind(key, str(own)) for key, own in self.settings.items() if own is not None]
        for first in range(0, len(known), _MOST_AT_ONCE):
            client.log_batch(run, params=known[first : first + _MOST_AT_ONCE])
        return client, run


def library() -> ModuleType:
    """Import MLflow, which is an extra, when it is needed."""
    import mlflow
    import mlflow.entities

    found: ModuleType = mlflow
    return found
