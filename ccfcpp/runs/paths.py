"""Where a run's files are, and the rules of starting and of going on: all that needs no tensors."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import differing_keys, dump_yaml, read_yaml, validate, values_of
from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import TEMPORARY, write_whole

C = TypeVar("C", bound=RunConfig)
Json = dict[str, Any]
"""A JSON object."""
Summary = Json
"""The results of a run, as they stand in ``summary.json``."""

MAY_CHANGE = frozenset({"device", "data.root", "compute.cohort", "tensorboard"})
"""What may differ when a run goes on: where it takes place, how many clients are trained at a time,
and what is logged beside ``metrics.jsonl``."""


class RunPaths:
    """The folder of a run. Every file appears whole.

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
        self.leakage = path / "leakage.json"
        self.deployment = path / "deployment.json"
        self.study = path / "study.yaml"

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> Self:
        """Start a run in a new or empty folder.

        Raises:
            UsageError: The folder holds something, or cannot be made.
        """
        folder = cls(path)
        folder.refuse_if_taken()
        with writable(path):
            write_whole(folder.config, dump_yaml(config).encode())
        return folder

    @classmethod
    def reopen(cls, path: Path) -> Self:
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
        if self.study.exists():
            raise UsageError(
                f"output folder {self.path} holds several runs: add --resume to go on with them, "
                "or give another --out"
            )
        refuse_full(self.path)

    def refuse_deployed(self) -> None:
        """Raise ``UsageError`` where the images of a run are with clients on other machines."""
        if self.deployment.exists():
            raise UsageError(
                f"the images of the run in {self.path} are with its clients, on other machines: go "
                "on with it by ccfcpp serve"
            )

    def saved_config(self, kind: type[C]) -> C:
        """The configuration the run was started with."""
        return validate(kind, read_yaml(self.config))

    def refuse_other_config(self, config: RunConfig) -> None:
        """Raise ``UsageError`` where ``config`` is not the one the run was started with.

        What ``MAY_CHANGE`` may change.
        """
        saved = self.saved_config(type(config))
        differing = sorted(set(differing_keys(saved, config)) - MAY_CHANGE)
        if differing:
            values = values_of(saved)
            before = ", ".join(f"{key} = {values.get(key)}" for key in differing)
            raise UsageError(
                f"the run in {self.path} was started with {before}: leave "
                f"{'it' if len(differing) == 1 else 'them'} out to resume, or give another --out"
            )

    def read_summary(self) -> Summary:
        """The results of a finished run.

        Raises:
            UsageError: The file is damaged.
        """
        try:
            summary = json.loads(self.summary.read_bytes())
        except ValueError as error:
            raise damaged(self.summary, error) from error
        if not isinstance(summary, dict):
            raise damaged(self.summary, "no object")
        return summary

    def write_leakage(self, found: Json) -> None:
        """Record what attacks on the finished run came to."""
        write_whole(self.leakage, json.dumps(found, indent=2).encode())

    def read_leakage(self) -> Json:
        """What attacks came to; empty where there were none.

        Raises:
            UsageError: The file is damaged.
        """
        if not self.leakage.is_file():
            return {}
        try:
            found = dict(json.loads(self.leakage.read_bytes()))
        except (ValueError, TypeError) as error:
            raise damaged(self.leakage, error) from error
        return found

    def read_log(self) -> list[Json]:
        """A row for each logged round; a crash can leave anything in the last line."""
        text = self.metrics.read_text(errors="replace") if self.metrics.is_file() else ""
        return list(itertools.takewhile(lambda row: "round" in row, map(row_of, text.splitlines())))

    def read_sessions(self) -> list[Json]:
        """The machines that the run has seen; none where it has not begun.

        Raises:
            UsageError: The file is damaged.
        """
        return _sessions_in(self.environment) if self.environment.is_file() else []

    def add_environment(self, environment: dict[str, object]) -> None:
        """Record the machine of a session; a resumed run may have seen several."""
        text = json.dumps({"sessions": [*self.read_sessions(), environment]}, indent=2)
        write_whole(self.environment, text.encode())


def damaged(path: Path, reason: object) -> UsageError:
    """Says that a file cannot be used, and what to do."""
    return UsageError(f"{path} is damaged ({reason}): delete it to run this again")


def _sessions_in(environment: Path) -> list[Json]:
    try:
        sessions = json.loads(environment.read_bytes())["sessions"]
        if not all(isinstance(session, dict) for session in sessions):
            raise TypeError("no list of objects")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{environment} is damaged ({error}): delete it to go on") from error
    return list(sessions)


def row_of(line: str) -> Json:
    """A logged line; without a round where a crash cut it short."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def refuse_full(folder: Path) -> None:
    """Raise ``UsageError`` where a new folder is a file, or holds something."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output folder {folder} is a file: give another --out")
    if folder.exists() and set(folder.iterdir()) - set(folder.glob(TEMPORARY)):
        raise UsageError(f"output folder {folder} is not empty: give another --out")


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Make a folder, and write into it.

    Raises:
        UsageError: The folder cannot be made, or a file in it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"output folder {folder} cannot be written ({error.strerror}): give another --out"
        ) from error


def new_path(method: str, dataset: str) -> Path:
    """The folder of a new run, where none is given."""
    name = Path(dataset).name.partition(".")[0]
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{method}-{name}"


def required_out(out: Path | None) -> Path:
    """The folder to resume in.

    Raises:
        UsageError: None was given.
    """
    if out is None:
        raise UsageError("--resume needs the folder of the run: give --out")
    return out
