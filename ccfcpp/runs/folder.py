"""The folder of a run: what it holds, and the rules of opening one."""

import io
import itertools
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import differing_keys, dump_yaml, read_yaml, validate
from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from ccfcpp.core.files import TEMPORARY, make_durable, save_tensors, write_whole
from ccfcpp.engine.payload import pack
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.tensorboard import Line, RoundLog, TensorBoardLog
from ccfcpp.runs.sheets import as_png

C = TypeVar("C", bound=RunConfig)

MAY_CHANGE = frozenset({"device", "data.root", "compute.cohort", "tensorboard"})
"""What may differ when a run goes on: where it takes place, how many clients are trained at a time,
and what is logged beside ``metrics.jsonl``."""

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


class RunFolder:
    """Paths and files of one run. Every file appears whole.

    Use ``create`` or ``reopen``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.model = path / "model.safetensors"
        self.figures = path / "figures"
        self.tensorboard = path / "tensorboard"
        self.checkpoint = path / "checkpoint" / "latest.safetensors"

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunFolder":
        """Start a run in a new or empty folder.

        Raises:
            UsageError: The folder holds something, or cannot be made.
        """
        folder = cls(path)
        folder.refuse_if_taken()
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_whole(folder.config, dump_yaml(config).encode())
        except OSError as error:
            raise UsageError(
                f"output folder {path} cannot be written ({error.strerror}): give another --out"
            ) from error
        return folder

    @classmethod
    def reopen(cls, path: Path) -> "RunFolder":
        """Go on with a run.

        Raises:
            UsageError: The folder holds no run.
        """
        folder = cls(path)
        if not folder.config.is_file():
            raise UsageError(
                f"there is no run to resume in {path} (no config.yaml): drop --resume, or give the "
                "folder of a run with --out"
            )
        for leftover in path.rglob(TEMPORARY):
            leftover.unlink()
        return folder

    def refuse_if_taken(self) -> None:
        """Raise ``UsageError`` where a new run would write among other files."""
        if self.config.exists():
            raise UsageError(
                f"output folder {self.path} holds another run: add --resume to go on with it, or "
                "give another --out"
            )
        if (self.path / "study.yaml").exists():
            raise UsageError(
                f"output folder {self.path} holds several runs: add --resume to go on with them, "
                "or give another --out"
            )
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"output folder {self.path} is a file: give another --out")
        leftovers = set(self.path.glob(TEMPORARY))
        if self.path.exists() and set(self.path.iterdir()) - leftovers:
            raise UsageError(f"output folder {self.path} is not empty: give another --out")

    def saved_config(self, kind: type[C]) -> C:
        """The configuration the run was started with."""
        return validate(kind, read_yaml(self.config))

    def refuse_other_config(self, config: RunConfig) -> None:
        """Raise ``UsageError`` where ``config`` is not the one the run was started with.

        What ``MAY_CHANGE`` may change.
        """
        differing = set(differing_keys(self.saved_config(type(config)), config)) - MAY_CHANGE
        if differing:
            raise UsageError(
                f"the run in {self.path} was started with other values of "
                f"{', '.join(sorted(differing))}: leave them out to resume, or give another --out"
            )

    def load_checkpoint(
        self, state_type: type[Any], device: torch.device
    ) -> Checkpoint[Any] | None:
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

    def save_checkpoint(self, checkpoint: Checkpoint[Any]) -> None:
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

    def read_summary(self) -> dict[str, Any]:
        """The results of a finished run.

        Raises:
            UsageError: The file is damaged.
        """
        try:
            summary = json.loads(self.summary.read_bytes())
        except ValueError as error:
            raise _damaged(self.summary, error) from error
        if not isinstance(summary, dict):
            raise _damaged(self.summary, "no object")
        return summary

    def read_log(self) -> list[dict[str, Any]]:
        """A row for each logged round; a crash can leave anything in the last line."""
        text = self.metrics.read_text(errors="replace") if self.metrics.is_file() else ""
        return list(itertools.takewhile(lambda row: "round" in row, map(_row, text.splitlines())))

    def read_sessions(self) -> list[dict[str, Any]]:
        """The machines that the run has seen; none where it has not begun.

        Raises:
            UsageError: The file is damaged.
        """
        return _sessions_in(self.environment) if self.environment.is_file() else []

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
            raise _damaged(path, error) from error

    def add_environment(self, environment: dict[str, object]) -> None:
        """Record the machine of a session; a resumed run may have seen several."""
        text = json.dumps({"sessions": [*self.read_sessions(), environment]}, indent=2)
        write_whole(self.environment, text.encode())

    def write_results(
        self,
        summary: dict[str, object],
        state: object,
        arrays: Mapping[str, Mapping[str, Tensor]],
        pictures: Mapping[str, Tensor],
    ) -> None:
        """Write what the server knows, arrays by file and name, pictures, and last the summary."""
        save_tensors(self.model, pack(state))
        for file, named in arrays.items():
            buffer = io.BytesIO()
            content: dict[str, Any] = {name: t.cpu().numpy() for name, t in named.items()}
            np.savez_compressed(buffer, **content)
            write_whole(self.path / f"{file}.npz", buffer.getvalue())
        for name, picture in pictures.items():
            self.figures.mkdir(exist_ok=True)
            write_whole(self.figures / f"{name}.png", as_png(picture))
        write_whole(self.summary, json.dumps(summary, indent=2).encode())


def _damaged(path: Path, reason: object) -> UsageError:
    return UsageError(f"{path} is damaged ({reason}): delete it to run this again")


def _sessions_in(environment: Path) -> list[dict[str, Any]]:
    try:
        sessions = json.loads(environment.read_bytes())["sessions"]
        if not all(isinstance(session, dict) for session in sessions):
            raise TypeError("no list of objects")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{environment} is damaged ({error}): delete it to go on") from error
    return list(sessions)


def _row(line: str) -> dict[str, Any]:
    """A logged line; without a round where a crash cut it short."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _round_of(line: str) -> float:
    """The round of a logged line; infinity for a line that a crash cut short."""
    try:
        return int(_row(line)["round"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
