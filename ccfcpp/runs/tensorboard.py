"""Event files for TensorBoard, beside ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import Json

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Line = Json
"""A round's report, and its scores under ``scores``."""
RoundLog = Callable[[Line], None]


def check_tensorboard(wanted: bool) -> None:
    """Raise ``UsageError`` where TensorBoard is wanted and its package is missing."""
    if wanted:
        _writer_type()


class TensorBoardLog:
    """Event files of one session of a run, beside those of earlier sessions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None

    def log_round(self, line: Line) -> None:
        """Write a round to the file.

        The session's first round hides the lines of earlier sessions for it and for later rounds.
        """
        number = line["round"]
        if self._writer is None:
            # Not earlier: a finished run that is resumed has no rounds, and needs no file.
            self._writer = _writer_type()(str(self.folder), purge_step=number)
        for tag, value in scalars(line).items():
            self._writer.add_scalar(tag, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def scalars(line: Line) -> dict[str, float]:
    """Return the numbers of a round by TensorBoard's tag."""
    return {
        **{f"figures/{name}": value for name, value in line["figures"].items()},
        **{f"scores/{name}": value for name, value in line["scores"].items()},
        "bytes/down": line["bytes_down"],
        "bytes/up": line["bytes_up"],
        "round/clients": len(line["clients"]),
        "round/refused_updates": sum(map(len, line["refused"].values())),
        "round/seconds": line["seconds"],
    }


def _writer_type() -> type[SummaryWriter]:
    """Import TensorBoard's writer, which is an extra, when it is needed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "logging for TensorBoard needs the package tensorboard: pip install "
            "'ccfcpp[tensorboard]', or leave it out"
        ) from error
    return SummaryWriter
