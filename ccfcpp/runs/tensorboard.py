"""Event files for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.runs.paths import Json, RunPaths
from ccfcpp.runs.tracking import Line, scalars

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoardLog:
    """Event files of one session of a run, beside those of earlier sessions."""

    def __init__(self, run: Path, settings: Json) -> None:
        self.folder = RunPaths(run).tensorboard
        self._writer: SummaryWriter | None = None

    def log_round(self, line: Line) -> None:
        """Write a round to the file.

        The session's first round hides the lines of earlier sessions for it and for later rounds.
        """
        number = line["round"]
        if self._writer is None:
            # Not earlier: a finished run that is resumed has no rounds, and needs no file.
            self._writer = library()(str(self.folder), purge_step=number)
        for tag, value in scalars(line).items():
            self._writer.add_scalar(tag, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def library() -> type[SummaryWriter]:
    """Import TensorBoard's writer, which is an extra, when it is needed."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter
