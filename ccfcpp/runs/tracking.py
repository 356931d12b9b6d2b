"""Trackers of experiments, which get the numbers of ``metrics.jsonl`` beside it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Protocol

from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import Json

Line = Json
"""A round's report, and its scores under ``scores``."""
NONE = "none"
_TRACKERS = {
    "tensorboard": ("TensorBoard", "ccfcpp.runs.tensorboard", "TensorBoardLog"),
    "mlflow": ("MLflow", "ccfcpp.runs.mlflow", "MlflowLog"),
}


class Tracker(Protocol):
    """The log of one session of a run."""

    def log_round(self, line: Line) -> None:
        """Log a round; the session's first one may have been logged by an earlier session."""

    def close(self) -> None:
        """End the session; nothing may have been logged in it."""


def tracker(name: str, run: Path, settings: Json) -> Tracker:
    """Return a tracker for a session of a run.

    Args:
        name: ``tensorboard`` or ``mlflow``.
        run: Folder of the run.
        settings: The run's settings by dotted key.
    """
    _, module, kind = _TRACKERS[name]
    made: Tracker = getattr(importlib.import_module(module), kind)(run, settings)
    return made


def check_tracker(name: str) -> None:
    """Raise ``UsageError`` where a tracker is wanted and its package is missing."""
    if name == NONE:
        return
    title, module, _ = _TRACKERS[name]
    try:
        importlib.import_module(module).library()
    except ImportError as error:
        raise UsageError(
            f"logging for {title} needs the package {name}: pip install '.[{name}]', or leave "
            "it out"
        ) from error


def scalars(line: Line) -> dict[str, float]:
    """Return the numbers of a round by name."""
    return {
        **{f"figures/{name}": value for name, value in line["figures"].items()},
        **{f"scores/{name}": value for name, value in line["scores"].items()},
        "bytes/down": line["bytes_down"],
        "bytes/up": line["bytes_up"],
        "round/clients": len(line["clients"]),
        "round/refused_updates": sum(map(len, line["refused"].values())),
        "round/seconds": line["seconds"],
    }
