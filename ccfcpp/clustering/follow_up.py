"""Runs that follow a finished one: with new clients and clusters, or without some of its clients.

Such a run has the settings of the finished one with a few changes, and a folder of its own, from
which it is resumed. It starts from random weights; or from the finished run's model, as a
checkpoint before its first round.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Self

from safetensors import safe_open

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config_layers import flatten, read_yaml, stack, validate
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.name_matching import canonical
from ccfcpp.core.randomness import Randomness
from ccfcpp.core.units import first_of
from ccfcpp.runs.folder import RunFolder

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import ClusteringAlgorithm
    from ccfcpp.core.config import Tree

_SHARE_OF_STEPS, _LEAST_STEPS = 0.2, 10
"""The share of a finished run's steps, and the fewest steps, that one with its model makes."""

_FASTER = 2.0
"""Times the finished run's rate of matrices: steps are few."""

_MAY_DIFFER = (
    "availability.dropout_rate", "availability.sample_fraction", "clusters", "device", "track",
    "evaluate_every", "data.skip", "rounds", "scan.steps", "scan.batch", "scan.steps_per_round",
    "scan.learning_rate", "scan.matrix_rate", "scan.mine_every",
)  # fmt: skip


def run_with(path: Path, newcomers: str, given: Tree, out: Path | None = None) -> Path:
    """Make the folder of a run that continues a finished one with new clients and clusters.

    The finished run's clients take part again, and its clusters keep their numbers. The new run
    starts with its encoder and clusters, and takes a fifth of its steps
    (``ccfcpp.clustering.systems.fed_scan.newcomers``).

    Args:
        path: Folder of the finished run, of Fed-SCAN.
        newcomers: Path of the new clients' images or vectors.
        given: Settings over those of the finished run, with ``clusters``.
        out: Folder of the new run; beside the finished one if it is None.

    Returns:
        The new folder, in which the run can be resumed from its start.

    Raises:
        UsageError: There is no such run, it cannot be extended, the settings do not fit it, or the
            folder is taken.
    """
    from ccfcpp.clustering.run import clustering_run

    instead = "go on from it by ccfcpp serve --from"
    finished = FinishedRun.open(path, "a run that goes on from it", instead)
    config = finished.config_with_newcomers(newcomers, given)
    new = finished.new_folder(out, f"with-{Path(newcomers).stem}")
    return finished.begin_with_model(new, config, clustering_run(config).algorithm)


def run_without(
    path: Path, clients: Sequence[str], out: Path | None = None, *, quick: bool = False
) -> Path:
    """Make the folder of a run like a finished one, without some of its clients.

    The new run has the same settings and seed, and random numbers follow from the seed, the round
    and the client. So its result is as if these clients had never taken part.

    Args:
        path: Folder of the finished run.
        clients: Names or numbers of clients, as its summary has them; a name wins over a number.
        out: Folder of the new run; beside the finished one if it is None.
        quick: Start with the model of the finished run, of Fed-SCAN, and take a fifth of its steps,
            so that little of these clients is left; ``ccfcpp.clustering.leakage`` measures it.

    Returns:
        The new folder, in which the run can be resumed from its start.

    Raises:
        UsageError: There is no such run or client, no client would be left, the folder is taken, or
            the run cannot be continued.
    """
    from ccfcpp.clustering.run import clustering_run

    instead = "start ccfcpp serve again without the client's key"
    finished = FinishedRun.open(path, "a new run", instead)
    gone = finished.client_numbers(clients)
    newcomers = finished.config.data.newcomers
    if newcomers or (finished.continued_another and not quick):
        then = ", and go on from what that gives by ccfcpp cluster --from" * bool(newcomers)
        raise UsageError(
            f"the run in {path} went on from another one, which knew its clients, too: forget the "
            f"client there{then}"
        )
    if quick:
        finished.check_can_continue("forget --quick")
    new = finished.new_folder(out, f"without-{'-'.join(map(str, gone))}")
    if quick:
        config = finished.config_with_model(gone=gone)
        return finished.begin_with_model(new, config, clustering_run(config).algorithm)
    without = sorted({*finished.config.availability.without, *gone})
    config = finished.changed_config({"availability": {"without": without}})
    return RunFolder.create(new.path, config).path


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of clustering, which another run may continue.

    Attributes:
        folder: Its folder.
        config: Its configuration.
        clients: Numbers of its clients.
        there: Names of the clients that took part, by their numbers.
    """

    folder: RunFolder
    config: ClusterConfig
    clients: Collection[int]
    there: Mapping[int, str]

    @classmethod
    def open(cls, path: Path, needs: str = "", instead: str = "") -> Self:
        """Read the folder of a finished run.

        Args:
            path: The folder.
            needs: What needs the images in this process; empty if they must be on other machines.
            instead: What to do about a run whose images are on other machines.

        Raises:
            UsageError: There is no such run.
        """
        folder, command = RunFolder(path), "cluster" if needs else "serve"
        give = f"give the folder of a finished run of ccfcpp {command}"
        if not folder.config.is_file():
            raise UsageError(f"{path} holds no run (no config.yaml): {give}")
        method = read_yaml(folder.config).get("method")
        if method not in METHODS:
            raise UsageError(f"{path} holds no run of clustering (method = {method}): {give}")
        if needs and folder.deployment.exists():
            raise UsageError(
                f"the images of the run in {path} are with its clients, on other machines, and "
                f"{needs} needs them: {instead or give}"
            )
        if not needs and not folder.deployment.exists():
            raise UsageError(f"{path} holds no run of ccfcpp serve: {give}")
        if not folder.summary.is_file() or not folder.checkpoint.is_file():
            raise UsageError(
                f"the run in {path} is not finished: go on with it by ccfcpp {command} --out "
                f"{shlex.quote(str(path))} --resume, or {give}"
            )
        summary = folder.read_summary()
        there = {one["client"]: one["name"] for one in summary["participants"]}
        return cls(folder, folder.saved_config(ClusterConfig), range(summary["clients"]), there)

    @property
    def continued_another(self) -> bool:
        """Whether it itself started with another run's model."""
        if self.config.method != "fed-scan":
            return False
        with safe_open(self.folder.model, framework="pt") as file:
            return int(file.get_tensor("version")) > self.config.section(ScanConfig).steps

    def client_numbers(self, clients: Sequence[str]) -> list[int]:
        """Return the numbers of clients that are to be left out, given their names or numbers.

        Raises:
            UsageError: A client took no part, or none would be left.
        """
        numbers = set[int]()
        for client in clients:
            if (number := number_of_client(client, self.there)) is None:
                names = first_of([*self.there.values()])
                raise UsageError(
                    f"no client {client} took part in {self.folder.path}: give one of {names}"
                )
            numbers.add(number)
        if len(numbers) == len(self.there):
            raise UsageError(
                f"{self.folder.path} without all of its clients would have nobody: name fewer"
            )
        return sorted(numbers)

    def new_folder(self, out: Path | None, suffix: str) -> RunFolder:
        """Return the folder of a new run, by default beside this one, with a suffix.

        Raises:
            UsageError: It is taken.
        """
        path = self.folder.path.resolve()
        folder = RunFolder(out or path.with_name(f"{path.name}-{suffix}"))
        folder.refuse_if_taken()
        return folder

    def check_can_continue(self, asked: str) -> None:
        """Refuse a run that cannot be continued by what a user has ``asked``.

        Raises:
            UsageError: In one line, what to do instead.
        """
        saved, why = self.config, ""
        if saved.method != "fed-scan":
            why = f"is of {saved.method}: run it again with --method fed-scan"
        elif saved.fewest_clusters:
            why = "found its number of clusters: run it again with that number, by --clusters"
        elif saved.privacy.level != "none" or saved.privacy.secure_sums:
            why = "has protected sums: run it again with other settings"
        elif saved.data.encoder is not None:
            why = "makes its own vectors: make them by ccfcpp embed, and run it again on these"
        elif not saved.vectors.is_plain:
            why = "prepares its vectors: run it again with --scale none"
        if why:
            raise UsageError(f"{asked} cannot go on from {self.folder.path}, which {why}")

    def changed_config(self, *changes: Tree) -> ClusterConfig:
        """Return its settings with changes, each over those before it."""
        kind = type(self.config)
        return validate(kind, stack(kind, self.config.model_dump(mode="json"), *changes))

    def config_with_model(self, *changes: Tree, gone: Collection[int] = ()) -> ClusterConfig:
        """Return the settings of a run that starts with its model, without some clients."""
        scan: Tree = {"last_balance": None}
        if not self.continued_another:  # Else it has few steps itself.
            before = self.config.section(ScanConfig)
            scan["steps"] = max(_LEAST_STEPS, round(before.steps * _SHARE_OF_STEPS))
            scan["matrix_rate"] = before.matrix_rate * _FASTER
        absent = {*self.clients} - self.there.keys() | {*gone}
        availability: Tree = {
            # Rounds are few, so that all have to be there.
            **{"dropout_rate": 0.0, "sample_fraction": 1.0, "late": [], "late_rounds": 1},
            # Clients that were absent for the whole run stay absent, and no others are drawn.
            **{"disconnection_rate": 0.0, "without": sorted(absent)},
        }
        return self.changed_config({"scan": scan, "availability": availability}, *changes)

    def config_with_newcomers(self, newcomers: str, given: Tree) -> ClusterConfig:
        """Return the settings of a run that continues it with new clients and clusters.

        Args:
            newcomers: Path of the new clients' samples.
            given: Other settings, with ``clusters``.

        Raises:
            UsageError: It cannot be continued, or the new run may not change a setting.
        """
        self.check_can_continue("--from")
        for key, _ in flatten(given):
            if key not in _MAY_DIFFER:
                path = self.folder.path
                why = f" cannot differ from that of {path}, from which the run goes on"
                raise UsageError(KeyValue(key), f"{why}: leave it out")
        places = [*self.config.data.newcomers, newcomers]
        return self.config_with_model({"data": {"newcomers": places}}, given)

    def begin_with_model(
        self,
        new: RunFolder,
        config: ClusterConfig,
        algorithm: ClusteringAlgorithm[Any],
        add: Callable[[RunFolder], None] = lambda folder: None,
    ) -> Path:
        """Make the folder of a new run, with a checkpoint before its first round.

        Args:
            new: The folder.
            config: Settings of the new run.
            algorithm: Its system.
            add: Writes more files into the folder.

        Raises:
            UsageError: There would be new clients, and no new clusters.
        """
        from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
        from ccfcpp.clustering.systems.fed_scan.newcomers import GrowingScan, inherited
        from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint

        assert isinstance(algorithm, FedScan)  # as on images, and vectors as they are
        device, randomness = algorithm.problem.device, Randomness(config.seed)
        last = load_checkpoint(self.folder.checkpoint, algorithm.state_type, device).state
        state = (
            algorithm.grown(last, self.clients, randomness)
            if isinstance(algorithm, GrowingScan)
            else inherited(algorithm, last, randomness)
        )
        # A folder without its checkpoint would begin from nothing when it is resumed.
        new.path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=new.path.parent, prefix=".from-") as place:
            whole = RunFolder.create(Path(place) / "run", config)
            whole.begin_with(Checkpoint(0, state, {}, {}), self.folder.path)
            add(whole)
            whole.path.rename(new.path)
        return new.path


def number_of_client(asked: str, names: Mapping[int, str]) -> int | None:
    """Return the number of a client, given its name, or else its number."""
    called = {str(number): number for number in names}
    called |= {canonical(name): number for number, name in names.items()}
    return called.get(canonical(asked))
