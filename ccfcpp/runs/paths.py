"""Paths of a run's files, and checks before it is started or resumed; no import of PyTorch."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from ccfcpp.core.config import RunConfig
from ccfcpp.core.config_layers import C, differing_keys, dump_yaml, read_yaml, validate, values_of
from ccfcpp.core.errors import KeyValue, UsageError, join_pieces
from ccfcpp.core.files import TEMPORARY, locked, write_atomically, write_table
from ccfcpp.core.tables import Rows
from ccfcpp.core.units import printable_name

Json = dict[str, Any]
"""A JSON object."""
Summary = Json
"""The results of a run, as they stand in ``summary.json``."""

MAY_CHANGE = frozenset({"device", "data.root", "compute.cohort", "track"})
"""Keys that may differ when a run is resumed: the machine, its use, and additional logs."""


@dataclass(frozen=True)
class RunSetting:
    """Content of ``setting.json``: a run's clients, classes and data, for its report.

    Attributes:
        planned: Planned number of rounds; a run may end earlier.
        described: Facts on data and clients, as in the summary.
        clients: Names of all clients, by their numbers.
        connected: Numbers of those that take part and hold images.
        classes: Names of the classes, in order.
        holdings: Number of images by client (row) and class; None if the run does not know them.
    """

    planned: int
    described: Json
    clients: dict[str, str]
    connected: list[int]
    classes: list[str]
    holdings: list[list[int]] | None


class RunPaths:
    """Paths of the files in a run's folder, some of which it reads and writes, atomically."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.environment = path / "environment.json"
        self.metrics = path / "metrics.jsonl"
        self.summary = path / "summary.json"
        self.setting = path / "setting.json"
        self.model = path / "model.safetensors"
        self.figures = path / "figures"
        self.tensorboard = path / "tensorboard"
        self.mlflow = path / "mlflow.json"
        self.checkpoint = path / "checkpoint" / "latest.safetensors"
        self.follows = path / "follows.json"
        self.leakage = path / "leakage.json"
        self.deployment = path / "deployment.json"
        self.study = path / "study.yaml"
        self.server = path / "server"

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> Self:
        """Create the folder of a new run, and write the run's ``config.yaml``.

        Raises:
            UsageError: The folder is not empty, or cannot be made.
        """
        folder = cls(path)
        folder.refuse_if_taken()
        with writable(path):
            write_atomically(folder.config, dump_yaml(config).encode())
        return folder

    @classmethod
    def reopen(cls, path: Path) -> Self:
        """Open the folder of a run to be resumed, and delete temporary files left in it.

        Raises:
            UsageError: The folder holds no run, or another process runs it.
        """
        folder = cls(path)
        if not folder.config.is_file():
            raise UsageError(
                f"there is no run to resume in {path} (no config.yaml): drop --resume, or give the "
                "folder of a run with --out"
            )
        with folder.lock():
            for leftover in path.rglob(TEMPORARY):
                leftover.unlink()
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run in the context; raise ``UsageError`` if another process runs it."""
        with locked(self.config) as free:
            if not free:
                raise UsageError(f"another process runs {self.path}: wait for it, or end it")
            yield

    def refuse_if_taken(self) -> None:
        """Raise ``UsageError`` if the folder holds other files, or its name is no UTF-8."""
        if str(self.path).encode("utf-8", "ignore").decode() != str(self.path):
            raise UsageError(
                f"output folder {printable_name(str(self.path))} has bytes in its name that are no "
                "letters of UTF-8, and its model could not be read again: give another --out"
            )
        for file, runs, it in (
            (self.config, "another run", "it"),
            (self.study, "several runs", "them"),
        ):
            if file.exists():
                raise UsageError(
                    f"output folder {self.path} holds {runs}: add --resume to go on with {it}, or "
                    "give another --out"
                )
        require_empty(self.path, self.server)

    def refuse_deployed(self) -> None:
        """Raise ``UsageError`` if the run's clients, with their images, are on other machines."""
        if self.deployment.exists():
            raise UsageError(
                f"the images of the run in {self.path} are with its clients, on other machines: go "
                "on with it by ccfcpp serve"
            )

    def saved_config(self, kind: type[C]) -> C:
        """Return the configuration with which the run was started; ``kind`` is its class."""
        return validate(kind, read_yaml(self.config))

    def refuse_other_config(self, config: RunConfig) -> None:
        """Raise ``UsageError`` if other keys than ``MAY_CHANGE`` differ from the saved config."""
        saved = self.saved_config(type(config))
        differing = sorted(set(differing_keys(saved, config)) - MAY_CHANGE)
        if differing:
            values = values_of(saved)
            before = join_pieces(", ", ([KeyValue(key, values.get(key))] for key in differing))
            raise UsageError(
                f"the run in {self.path} was started with ",
                *before,
                f": leave {'it' if len(differing) == 1 else 'them'} out to resume, or give another "
                "--out",
            )

    def read_summary(self) -> Summary:
        """Return the content of ``summary.json``; raise ``UsageError`` if it is damaged."""
        return _read_object(self.summary)

    def write_setting(self, setting: RunSetting) -> None:
        """Write ``setting.json`` each time that the run is started or resumed."""
        write_atomically(self.setting, json.dumps(vars(setting)).encode())

    def read_setting(self) -> RunSetting | None:
        """Return the content of ``setting.json``; None if an earlier version made the run.

        Raises:
            UsageError: The file is damaged.
        """
        if not self.setting.is_file():
            return None
        try:
            return RunSetting(**_read_object(self.setting))
        except TypeError as error:
            raise damaged(self.setting, error) from error

    def write_leakage(self, found: Json) -> None:
        """Write the results of attacks on the finished run to ``leakage.json``."""
        write_atomically(self.leakage, json.dumps(found, indent=2).encode())

    def read_leakage(self) -> Json:
        """Return the content of ``leakage.json``; {} without it; ``UsageError`` if damaged."""
        return _read_object(self.leakage) if self.leakage.is_file() else {}

    def write_table(self, name: str, rows: Rows) -> None:
        """Write rows to the CSV file ``name``, given without its suffix."""
        write_table(self.path / f"{name}.csv", rows)

    def read_log(self) -> list[Json]:
        """Return a row for each logged round; a last line that a crash cut short is ignored."""
        text = self.metrics.read_text(errors="replace") if self.metrics.is_file() else ""
        return list(
            itertools.takewhile(lambda row: "round" in row, map(parse_row, text.splitlines()))
        )

    def absent_in_last_round(self) -> set[int]:
        """Return the numbers of the clients that did not answer in the last logged round."""
        log = self.read_log()
        absent = map(int, log[-1].get("absent", {})) if log else ()
        return {client for client in absent if client not in log[-1]["clients"]}

    def read_sessions(self) -> list[Json]:
        """Return the environment of each session, from a start or resumption of the run to its end.

        Raises:
            UsageError: ``environment.json`` is damaged.
        """
        if not self.environment.is_file():
            return []
        try:
            sessions = json.loads(self.environment.read_bytes())["sessions"]
            if not all(isinstance(session, dict) for session in sessions):
                raise TypeError("no list of objects")
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{self.environment} is damaged ({error}): delete it to go on"
            ) from error
        return list(sessions)

    def add_environment(self, environment: dict[str, object]) -> None:
        """Add the environment of a session (a start or resumption) to ``environment.json``."""
        text = json.dumps({"sessions": [*self.read_sessions(), environment]}, indent=2)
        write_atomically(self.environment, text.encode())


def damaged(path: Path, reason: object) -> UsageError:
    """Return the error that says that a file is damaged, and why."""
    return UsageError(f"{path} is damaged ({reason}): delete it to run this again")


def _read_object(path: Path) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise damaged(path, error) from error
    if not isinstance(content, dict):
        raise damaged(path, "no object")
    return content


def parse_row(line: str) -> Json:
    """Parse a line of the log; return {} if it is no JSON object, as after a crash."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def require_empty(folder: Path, *but: Path) -> None:
    """Raise ``UsageError`` if ``folder`` is a file, or holds other paths than ``but``."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"output folder {folder} is a file: give another --out")
    if folder.exists() and set(folder.iterdir()) - set(folder.glob(TEMPORARY)) - {*but}:
        raise UsageError(f"output folder {folder} is not empty: give another --out")


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Make a folder for the block to write into; each ``OSError`` becomes a ``UsageError``."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        why = error.strerror or error
        raise UsageError(
            f"output folder {folder} cannot be written ({why}): give another --out"
        ) from error


def new_path(method: str, dataset: str) -> Path:
    """Return the default folder of a new run: ``runs/TIME-METHOD-DATASET``."""
    name = Path(dataset).name.partition(".")[0]
    return Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S-%f}-{method}-{name}"


def required_out(out: Path | None) -> Path:
    """Return ``out``, the folder of a run to be resumed; raise ``UsageError`` if it is None."""
    if out is None:
        raise UsageError("--resume needs the folder of the run: give --out")
    return out
