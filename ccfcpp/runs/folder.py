"""Files of a run that hold tensors, and its log."""

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ccfcpp.core.config_layers import flatten, read_yaml
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import append_line, atomic_file, make_durable, save_tensors, write_atomically
from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ccfcpp.engine.exchange import State
from ccfcpp.runs.contact_sheets import as_png
from ccfcpp.runs.evaluator import Arrays, Results
from ccfcpp.runs.paths import RunPaths, Summary, damaged, parse_row
from ccfcpp.runs.tracking import NONE, TRACKERS, Line

# Flipped bits of an archive raise any of these; RuntimeError is an unknown compression.
_DAMAGED_ARRAYS = (ValueError, TypeError, RuntimeError, OSError, EOFError, BadZipFile, zlib.error)


class RunFolder(RunPaths):
    """A run's folder, with its log and the files of tensors: checkpoint, arrays and model."""

    def load_checkpoint(
        self, state_type: type[State], device: torch.device
    ) -> Checkpoint[State] | None:
        """Return the last checkpoint, if any, and delete the lines of later rounds from the log.

        Raises:
            UsageError: The checkpoint is damaged; or it is missing, and the run began with another
                run's model.
        """
        checkpoint = None
        if self.checkpoint.exists():
            checkpoint = load_checkpoint(self.checkpoint, state_type, device)
        elif self.follows.exists():
            before = json.loads(self.follows.read_text())["run"]
            raise UsageError(
                f"{self.checkpoint} is gone, and with it the model of {before} with which this run "
                "began: make it anew from that run"
            )
        self._delete_rounds_from(checkpoint.next_round if checkpoint else 0)
        return checkpoint

    def start_from(self, checkpoint: Checkpoint[State], run: Path) -> None:
        """Store ``checkpoint``, made from a finished run (in ``run``), as the start of this run."""
        write_atomically(self.follows, json.dumps({"run": str(run)}).encode())
        save_checkpoint(self.checkpoint, checkpoint)

    @contextmanager
    def log(self, track: str) -> Iterator[Callable[[Line], None]]:
        """Yield a function that logs a round to ``metrics.jsonl``, and to the tracker ``track``."""
        if track == NONE:
            yield self.log_round
            return
        settings = dict(flatten(read_yaml(self.config)))
        with closing(TRACKERS[track](self.path, settings)) as other:

            def log_round(line: Line) -> None:
                self.log_round(line)
                other.log_round(line)

            yield log_round

    def log_round(self, line: Line) -> None:
        """Append a round's report and scores to ``metrics.jsonl``."""
        append_line(self.metrics, json.dumps(line))

    def save_checkpoint(self, checkpoint: Checkpoint[State]) -> None:
        """Save a checkpoint; the log must already hold the lines of all rounds before it."""
        make_durable(self.metrics)
        save_checkpoint(self.checkpoint, checkpoint)

    def _delete_rounds_from(self, number: int) -> None:
        """Delete the log's lines of round ``number`` and later ones, which will run again."""
        if not self.metrics.exists():
            return
        # A crash can leave anything in the last line.
        lines = self.metrics.read_text(errors="replace").splitlines(keepends=True)
        kept = [line for line in lines if _round_of(line) < number]
        if kept != lines:
            write_atomically(self.metrics, "".join(kept).encode())

    def read_arrays(self, file: str) -> dict[str, Tensor]:
        """Return the numeric arrays of a file that ``write_arrays`` wrote.

        Args:
            file: The file's name without its suffix.

        Returns:
            Arrays by name; empty if there is no such file.

        Raises:
            UsageError: The file is damaged.
        """
        arrays = self._read(file)
        return {n: torch.from_numpy(a) for n, a in arrays.items() if a.dtype.kind != "U"}

    def read_texts(self, file: str, name: str) -> tuple[str, ...]:
        """Return the texts that ``write_arrays`` wrote to ``file`` as ``name``; () if missing."""
        texts = self._read(file).get(name)
        return () if texts is None or texts.dtype.kind != "U" else tuple(texts.tolist())

    def _read(self, file: str) -> dict[str, NDArray[np.generic]]:
        path = self.path / f"{file}.npz"
        if not path.is_file():
            return {}
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
        except _DAMAGED_ARRAYS as error:
            raise damaged(path, error) from error

    def write_arrays(self, arrays: Arrays) -> None:
        """Write arrays, given by file (without suffix) and name, to ``.npz`` files."""
        for file, named in arrays.items():
            content = {
                name: each.cpu().numpy() if isinstance(each, Tensor) else each
                for name, each in named.items()
            }
            # Directly into the file: for millions of images a second copy would fill the memory.
            with atomic_file(self.path / f"{file}.npz") as path, path.open("wb") as stream:
                np.savez_compressed(stream, **content)  # type: ignore[arg-type] # no options

    def write_results(self, summary: Summary, results: Results) -> None:
        """Write tables, model, arrays, pictures, and last the summary, which marks the end."""
        for name, rows in results.tables.items():
            self.write_table(name, rows)
        save_tensors(self.model, results.model, dict(results.header))
        self.write_arrays(results.arrays)
        for name, picture in results.pictures.items():
            self.figures.mkdir(exist_ok=True)
            write_atomically(self.figures / f"{name}.png", as_png(picture))
        write_atomically(self.summary, json.dumps(summary, indent=2).encode())


def _round_of(line: str) -> float:
    """Return the round of a logged line; infinity for a line that a crash cut short."""
    try:
        return int(parse_row(line)["round"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
