"""Experiment trackers, TensorBoard and MLflow, which log the numbers of ``metrics.jsonl``.

Their packages are optional, and are imported only if a tracker is wanted.
"""

from __future__ import annotations

import importlib
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.runs.paths import Json, RunPaths

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Line = Json
"""A round's report, and its scores under ``scores``."""
NONE = "none"
_EXPERIMENT = "ccfcpp"
"""Name of all runs together in MLflow."""
_MOST_AT_ONCE = 100
"""Largest number of parameters that MLflow takes at once."""


class TensorBoardLog:
    """TensorBoard's event file of one session (start or resumption) of a run."""

    title, module = "TensorBoard", "torch.utils.tensorboard"

    def __init__(self, run: Path, settings: Json) -> None:
        self.folder = RunPaths(run).tensorboard
        self._writer: SummaryWriter | None = None

    def log_round(self, line: Line) -> None:
        """Write a round to the file.

        The session's first round hides what earlier sessions logged for it and for later rounds.
        """
        number = line["round"]
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Not earlier: a finished run that is resumed has no rounds, and needs no file.
            self._writer = SummaryWriter(str(self.folder), purge_step=number)
        for tag, value in scalars(line).items():
            self._writer.add_scalar(tag, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class MlflowLog:
    """A run in MLflow, which later sessions continue.

    MLflow writes to ``$MLFLOW_TRACKING_URI``, or else to a local store in the
    working directory. Rounds that are run again appear twice, with the same numbers.
    """

    title, module = "MLflow", "mlflow"

    def __init__(self, run: Path, settings: Json) -> None:
        self.file = RunPaths(run).mlflow
        self.name = str(run)
        self.settings = settings
        self._run: tuple[Any, str] | None = None

    def log_round(self, line: Line) -> None:
        """Log the numbers of a round; the session's first one starts the run, or continues it."""
        from mlflow.entities import Metric

        client, run = self._run = self._run or self._open()
        now = int(time.time() * 1000)
        metrics = [
            Metric(name.replace(" ", "_"), float(value), now, line["round"])
            for name, value in scalars(line).items()
            if math.isfinite(value)
        ]
        client.log_batch(run, metrics=metrics)

    def close(self) -> None:
        """Mark the run as finished; a later session may continue it."""
        if self._run is not None:
            client, run = self._run
            client.set_terminated(run)

    def _open(self) -> tuple[Any, str]:
        import mlflow
        from mlflow.entities import Param

        client = mlflow.MlflowClient()
        if self.file.is_file():
            run = str(json.loads(self.file.read_text())["run_id"])
            client.update_run(run, status="RUNNING")
            return client, run
        experiment = client.get_experiment_by_name(_EXPERIMENT)
        experiment_id = (
            experiment.experiment_id if experiment else client.create_experiment(_EXPERIMENT)
        )
        run = str(client.create_run(experiment_id, run_name=self.name).info.run_id)
        write_atomically(self.file, json.dumps({"run_id": run}).encode())
        known = [Param(key, str(own)) for key, own in self.settings.items() if own is not None]
        for first in range(0, len(known), _MOST_AT_ONCE):
            client.log_batch(run, params=known[first : first + _MOST_AT_ONCE])
        return client, run


Tracker = TensorBoardLog | MlflowLog
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoardLog, "mlflow": MlflowLog}
"""Trackers by name. One is made of a run's folder and settings, by dotted key, for a session."""


def check_tracker(name: str) -> None:
    """Raise ``UsageError`` if the package of the tracker ``name`` (or ``none``) is missing."""
    if name == NONE:
        return
    kind = TRACKERS[name]
    try:
        importlib.import_module(kind.module)
    except ImportError as error:
        raise UsageError(
            f"logging for {kind.title} needs the package {name}: pip install '.[{name}]', or leave "
            "it out"
        ) from error


def scalars(line: Line) -> dict[str, float]:
    """Return the numbers of a round by the tags under which trackers show them."""
    return {
        **{f"figures/{name}": value for name, value in line["figures"].items()},
        **{f"scores/{name}": value for name, value in line["scores"].items()},
        "bytes/down": line["bytes_down"],
        "bytes/up": line["bytes_up"],
        "round/clients": len(line["clients"]),
        "round/refused_updates": sum(map(len, line["refused"].values())),
        "round/seconds": line["seconds"],
    }
