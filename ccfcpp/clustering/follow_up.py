"""Runs that follow a finished run: with new clients and clusters, or without some clients.

Such a run has the settings of the finished run with a few changes, and a folder of its own, in
which it is then resumed. It starts from random weights or from the finished run's model, which the
new folder holds as a checkpoint before the first round.
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
from ccfcpp.core.units import list_first
from ccfcpp.runs.folder import RunFolder

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import ClusteringAlgorithm
    from ccfcpp.core.config import Tree

_SHARE_OF_STEPS, _LEAST_STEPS = 0.2, 10
"""Share of a finished run's steps that a run from its model makes, and the fewest such steps."""

_FASTER = 2.0
"""Factor on the finished run's learning rate of matrices, since there are fewer steps."""

_MAY_CHANGE = (
    "availability.dropout_rate", "availability.sample_fraction", "clusters", "device", "track",
    "evaluate_every", "data.skip", "rounds", "scan.steps", "scan.batch", "scan.steps_per_round",
    "scan.learning_rate", "scan.matrix_rate", "scan.mine_every",
)  # fmt: skip


def run_with(path: Path, newcomers: str, given: Tree, out: Path | None = None) -> Path:
    """Create the folder of a run that continues a finished one with new clients and clusters.

    The finished run's clients take part again, and its clusters keep their numbers. The new run
    starts from the finished run's encoder and clusters, and has a fifth as many steps
    (``ccfcpp.clustering.systems.fed_scan.newcomers``).

    Args:
        path: Folder of a finished run of Fed-SCAN.
        newcomers: Path of the new clients' images or vectors.
        given: Settings that replace those of the finished run, with ``clusters`` among them.
        out: Folder of the new run; None: a folder beside the finished run's.

    Returns:
        The new folder; the run has not begun, and is to be resumed there.

    Raises:
        UsageError: There is no such run, it cannot be extended, a setting may not change, or the
            new folder exists.
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
    """Create the folder of a run like a finished one, but without some of its clients.

    The new run has the same settings and seed, and random numbers depend only on the seed, the
    round and the client. So its result is as if these clients had never taken part.

    Args:
        path: Folder of the finished run.
        clients: Names or numbers of clients, as in the run's summary; a name wins over a number.
        out: Folder of the new run; None: a folder beside the finished run's.
        quick: Whether to start from the finished run's model (only Fed-SCAN), with a fifth as many
            steps. The model may then still reveal something of these clients, which
            ``ccfcpp.clustering.leakage`` measures.

    Returns:
        The new folder; the run has not begun, and is to be resumed there.

    Raises:
        UsageError: There is no such run or client, no client would be left, the new folder exists,
            or the run cannot be continued.
    """
    from ccfcpp.clustering.run import clustering_run

    instead = "start ccfcpp serve again without the client's key"
    finished = FinishedRun.open(path, "a new run", instead)
    gone = finished.client_numbers(clients)
    newcomers = finished.config.data.newcomers
    if newcomers or (finished.continued_another and not quick):
        then = ". Then, or to forget a newcomer, go on from there anew with those who stay: "
        then += "ccfcpp cluster --from"
        raise UsageError(
            f"the run in {path} went on from another one, which knew its clients, too: forget the "
            f"client there{then if newcomers else ''}"
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
    """A finished clustering run, which another run may continue.

    Attributes:
        folder: The run's folder.
        config: Configuration of the run.
        clients: Numbers of all clients.
        there: Names of the clients that took part, by number.
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
            needs: What needs the images on this machine, for the error message; empty if the run
                must have had its clients on other machines (``ccfcpp serve``).
            instead: Advice to the user if the clients' images are on other machines.

        Raises:
            UsageError: The folder holds no such run, or the run is not finished.
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
        """Whether this run itself started from another run's model."""
        if self.config.method != "fed-scan":
            return False
        with safe_open(self.folder.model, framework="pt") as file:
            return int(file.get_tensor("version")) > self.config.section(ScanConfig).steps

    def client_numbers(self, clients: Sequence[str]) -> list[int]:
        """Return the sorted numbers of clients to leave out, given their names or numbers.

        Raises:
            UsageError: A client did not take part, or no client would be left.
        """
        numbers = set[int]()
        for client in clients:
            if (number := number_of_client(client, self.there)) is None:
                names = list_first([*self.there.values()])
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
        """Return a folder for a new run: ``out``, or else this run's path with a suffix.

        Raises:
            UsageError: The folder exists and is not empty.
        """
        path = self.folder.path.resolve()
        folder = RunFolder(out or path.with_name(f"{path.name}-{suffix}"))
        folder.refuse_if_taken()
        return folder

    def check_can_continue(self, asked: str) -> None:
        """Check that a new run can start from this run's model; errors begin with ``asked``.

        Raises:
            UsageError: It cannot; the message says what to do instead.
        """
        config, why = self.config, ""
        if config.method != "fed-scan":
            why = f"is of {config.method}: run it again with --method fed-scan"
        elif config.fewest_clusters:
            why = "found its number of clusters: run it again with that number, by --clusters"
        elif config.privacy.level != "none" or config.privacy.secure_sums:
            why = "has protected sums: run it again with other settings"
        elif config.data.encoder is not None:
            why = "makes its own vectors: make them by ccfcpp embed, and run it again on these"
        elif not config.vectors.is_plain:
            why = "prepares its vectors: run it again with --scale none"
        if why:
            raise UsageError(f"{asked} cannot go on from {self.folder.path}, which {why}")

    def changed_config(self, *changes: Tree) -> ClusterConfig:
        """Return the run's configuration with changes, nested dicts; later ones take precedence."""
        kind = type(self.config)
        return validate(kind, stack(kind, self.config.model_dump(mode="json"), *changes))

    def config_with_model(self, *changes: Tree, gone: Collection[int] = ()) -> ClusterConfig:
        """Return the configuration of a new run that starts from this run's model.

        It has few steps, and all of its clients take part in every round.

        Args:
            *changes: Settings that replace those of this run, as nested dicts.
            gone: Numbers of clients of this run that are left out.
        """
        scan: Tree = {"last_balance": None}
        if not self.continued_another:  # If it did, its own steps are few already.
            before = self.config.section(ScanConfig)
            scan["steps"] = max(_LEAST_STEPS, round(before.steps * _SHARE_OF_STEPS))
            scan["matrix_rate"] = before.matrix_rate * _FASTER
        absent = {*self.clients} - self.there.keys() | {*gone}
        availability: Tree = {
            # Since rounds are few, all clients have to take part.
            **{"dropout_rate": 0.0, "sample_fraction": 1.0, "late": [], "late_rounds": 1},
            # Clients that were absent for the whole run stay absent, and no others are drawn.
            **{"disconnection_rate": 0.0, "without": sorted(absent)},
        }
        return self.changed_config({"scan": scan, "availability": availability}, *changes)

    def config_with_newcomers(self, newcomers: str, given: Tree) -> ClusterConfig:
        """Return the configuration of a run that continues this one with new clients and clusters.

        Args:
            newcomers: Path of the new clients' samples.
            given: Settings that replace those of this run, with ``clusters`` among them.

        Raises:
            UsageError: This run cannot be continued, or a setting may not change.
        """
        self.check_can_continue("--from")
        for key, _ in flatten(given):
            if key not in _MAY_CHANGE:
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
        """Create the folder of a new run, with this run's model as a checkpoint before round 0.

        Args:
            new: The folder.
            config: Configuration of the new run.
            algorithm: Algorithm of the new run.
            add: Function that writes more files into the folder.

        Raises:
            UsageError: There are new clients but no new clusters.
        """
        from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
        from ccfcpp.clustering.systems.fed_scan.newcomers import GrowingScan, inherit_state
        from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint

        assert isinstance(algorithm, FedScan)  # check_can_continue refused other systems
        device, randomness = algorithm.problem.device, Randomness(config.seed)
        last = load_checkpoint(self.folder.checkpoint, algorithm.state_type, device).state
        state = (
            algorithm.continued_state(last, self.clients, randomness)
            if isinstance(algorithm, GrowingScan)
            else inherit_state(algorithm, last, randomness)
        )
        # Renamed when complete: a folder without its checkpoint would start from random weights.
        new.path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=new.path.parent, prefix=".from-") as temporary:
            folder = RunFolder.create(Path(temporary) / "run", config)
            folder.start_from(Checkpoint(0, state, {}, {}), self.folder.path)
            add(folder)
            folder.path.rename(new.path)
        return new.path


def number_of_client(asked: str, names: Mapping[int, str]) -> int | None:
    """Return the number of the client whose name, or else number, is ``asked``; None if unknown."""
    numbers = {str(number): number for number in names}
    numbers |= {canonical(name): number for number, name in names.items()}
    return numbers.get(canonical(asked))
