"""What a run's folder holds."""

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.files import make_durable, save_tensors, write_whole
from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ccfcpp.engine.exchange import State
from ccfcpp.engine.payload import pack
from ccfcpp.runs.paths import RunPaths, damaged, row_of
from ccfcpp.runs.sheets import as_png
from ccfcpp.runs.tensorboard import Line, RoundLog, TensorBoardLog

# What flipped bits of an archive come to, an unknown compression among them.
_DAMAGED_ARRAYS = (
    ValueError,
    TypeError,
    RuntimeError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
)


class RunFolder(RunPaths):
    """The files of a run, tensors and all."""

    def load_checkpoint(
        self, state_type: type[State], device: torch.device
    ) -> Checkpoint[State] | None:
        """The last checkpoint, or None where the run ended before its first."""
        checkpoint = None
        if self.checkpoint.exists():
            checkpoint = load_checkpoint(self.checkpoint, state_type, device)
        self._forget_rounds_from(checkpoint.next_round if checkpoint else 0)
        return checkpoint

    @contextmanager
    def log(self, tensorboard: bool) -> Iterator[RoundLog]:
        """Open what takes the rounds' lines.

        Args:
            tensorboard: Whether TensorBoard's event files get them, beside ``metrics.jsonl``.
        """
        if not tensorboard:
            yield self.log_round
            return
        with closing(TensorBoardLog(self.tensorboard)) as events:

            def log_round(line: Line) -> None:
                self.log_round(line)
                events.log_round(line)

            yield log_round

    def log_round(self, line: Line) -> None:
        """Add a round to ``metrics.jsonl``."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def save_checkpoint(self, checkpoint: Checkpoint[State]) -> None:
        """Save what the next round depends on; the round's line must be in the log."""
        make_durable(self.metrics)
        save_checkpoint(self.checkpoint, checkpoint)

    def _forget_rounds_from(self, number: int) -> None:
        """Drop lines of rounds that were logged but not checkpointed: they will be run again."""
        if not self.metrics.exists():
            return
        # A crash can leave anything in the last line.
        lines = self.metrics.read_text(errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _round_of(line) < number]
        if kept != lines:
            write_whole(self.metrics, "".join(kept).encode())

    def read_arrays(self, file: str) -> dict[str, Tensor]:
        """Arrays by name that ``write_results`` has written; none where it wrote no such file.

        Args:
            file: The stem of its name.

        Raises:
            UsageError: The file is damaged.
        """
        path = self.path / f"{file}.npz"
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        except _DAMAGED_ARRAYS as error:
            raise damaged(path, error) from error

    def write_results(
        self,
        summary: dict[str, object],
        state: object,
        arrays: Mapping[str, Mapping[str, Tensor]],
        pictures: Mapping[str, Tensor],
        model_facts: dict[str, str],
    ) -> None:
        """Write what the server knows, arrays by file and name, pictures, and last the summary.

        Args:
            summary: The results.
            state: What the server knows.
            arrays: By file and name.
            pictures: By name, each uint8 of shape (height, width, 3).
            model_facts: The header of the state's file.
        """
        save_tensors(self.model, pack(state), model_facts)
        for file, named in arrays.items():
            buffer = io.BytesIO()
            content = {name: tensor.cpu().numpy() for name, tensor in named.items()}
            np.savez_compressed(buffer, **content)  # type: ignore[arg-type] # names are no options
            write_whole(self.path / f"{file}.npz", buffer.getvalue())
        for name, picture in pictures.items():
            self.figures.mkdir(exist_ok=True)
            write_whole(self.figures / f"{name}.png", as_png(picture))
        write_whole(self.summary, json.dumps(summary, indent=2).encode())


def _round_of(line: str) -> float:
    """The round of a logged line; infinity for a line that a crash cut short."""
    try:
        return int(row_of(line)["round"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
