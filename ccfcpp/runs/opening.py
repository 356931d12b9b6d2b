"""Opening runs: new ones in a new folder, and those that go on.

An ``Opening`` has checked all that can be checked without images. It imports no network library, so
that a command can say at once what it is about to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import stack, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.given import Given
from ccfcpp.runs.paths import C, RunPaths
from ccfcpp.runs.tensorboard import check_tensorboard

if TYPE_CHECKING:
    from ccfcpp.runs.experiment import AnyExperiment
    from ccfcpp.runs.folder import RunFolder

E = TypeVar("E", bound="AnyExperiment")


@dataclass(frozen=True)
class Opening(Generic[C]):
    """A run that is about to begin or to go on.

    Use ``new`` or ``going_on``.

    Attributes:
        path: Its folder.
        config: Its configuration.
        goes_on: Whether it has begun before.
        given: What the user gave for a new run.
    """

    path: Path
    config: C
    goes_on: bool
    given: Given = field(default_factory=Given)

    def __post_init__(self) -> None:
        check_tensorboard(self.config.tensorboard)

    @staticmethod
    def new(path: Path, config: C, given: Given | None = None) -> Opening[C]:
        """A run in a new or empty folder.

        Raises:
            UsageError: The folder holds something.
        """
        RunPaths(path).refuse_if_taken()
        return Opening(path, config, goes_on=False, given=given or Given())

    @staticmethod
    def going_on(path: Path, kind: type[C], *layers: Tree, deployed: bool = False) -> Opening[C]:
        """A run that was begun, with the same values or those that may change.

        Args:
            path: Its folder.
            kind: The kind of its configuration.
            layers: What the user gave.
            deployed: Whether the images may be with clients on other machines.

        Raises:
            UsageError: There is no such run, or it was started with other values, or its images are
                elsewhere.
        """
        paths = RunPaths.reopen(path)
        if not deployed:
            paths.refuse_deployed()
        saved = paths.saved_config(kind).model_dump(mode="json")
        config = validate(kind, stack(kind, saved, *layers))
        paths.refuse_other_config(config)
        return Opening(path, config, goes_on=True)

    def open(self, make: Callable[[C], E]) -> tuple[E, RunFolder]:
        """The experiment and its folder.

        Args:
            make: Makes an experiment, which checks what is left to check; after that the folder is
                made where it is new.
        """
        from ccfcpp.runs.folder import RunFolder

        experiment = make(self.config)
        if self.goes_on:
            return experiment, RunFolder(self.path)
        return experiment, RunFolder.create(self.path, self.config)


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
