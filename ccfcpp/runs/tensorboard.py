"""What takes a line for each round, beside ``metrics.jsonl``: event files for TensorBoard."""

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
    """Refuse to log for TensorBoard where its package is missing.

    Raises:
        UsageError: The package is missing.
    """
    if wanted:
        _writer_type()


class TensorBoardLog:
    """Event files of one session of a run, with the numbers of each round.

    Args:
        folder: Where to; earlier sessions' files stay there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None

    def log_round(self, line: Line) -> None:
        """Add a round; it is in the file when this returns.

        The session's first round also hides what earlier sessions logged of it and of later ones,
        which are run again.
        """
        number = line["round"]
        if self._writer is None:
            # Not before there is something to say: a finished run that is resumed has no rounds.
            self._writer = _writer_type()(str(self.folder), purge_step=number)
        for tag, value in scalars(line).items():
            self._writer.add_scalar(tag, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


def scalars(line: Line) -> dict[str, float]:
    """The numbers of a round, by TensorBoard's tag."""
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
    """TensorBoard's writer, imported where it is wanted and not before: it is an extra."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError(
            "tensorboard = true needs the package tensorboard: pip install 'ccfcpp[tensorboard]', "
            "or leave it out"
        ) from error
    return SummaryWriter
