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
from ccfcpp.core.names import canonical
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
        out: Folder of the new run; beside the finished one where it is None.

    Returns:
        The new folder, in which the run can be resumed from its start.

    Raises:
        UsageError: There is no such run, it cannot be extended, the settings do not fit it, or the
            folder is taken.
    """
    from ccfcpp.clustering.run import clustering_run

    instead = "go on from it by ccfcpp serve --from"
    finished = finished_run(path, "a run that goes on from it", instead)
    suffix = f"with-{Path(newcomers).stem}"
    later = WarmStart.of(finished, out, suffix, given=given, newcomers=[newcomers])
    return later.begin(clustering_run(later.config).algorithm)


def run_without(
    path: Path, clients: Sequence[str], out: Path | None = None, *, quick: bool = False
) -> Path:
    """Make the folder of a run like a finished one, without some of its clients.

    The new run has the same settings and seed, and random numbers follow from the seed, the round
    and the client. So its result is as if these clients had never taken part.

    Args:
        path: Folder of the finished run.
        clients: Names or numbers of clients, as its summary has them; a name wins over a number.
        out: Folder of the new run; beside the finished one where it is None.
        quick: Start with the model of the finished run, of Fed-SCAN, and take a fifth of its steps,
            so that little of these clients is left; ``ccfcpp.clustering.leakage`` measures it.

    Returns:
        The new folder, in which the run can be resumed from its start.

    Raises:
        UsageError: There is no such run or client, no client would be left, the folder is taken, or
            the run cannot be continued.
    """
    instead = "start ccfcpp serve again without the client's key"
    finished = finished_run(path, "a new run", instead)
    chosen = _numbers(finished, clients)
    saved = finished.saved_config(ClusterConfig)
    if saved.data.newcomers or (_went_on(finished) and not quick):
        then = ", and go on from what that gives by ccfcpp cluster --from"
        raise UsageError(
            f"the run in {path} went on from another one, which knew its clients, too: forget the "
            f"client there{then * bool(saved.data.newcomers)}"
        )
    suffix = f"without-{'-'.join(map(str, chosen))}"
    if not quick:
        without = sorted({*saved.availability.without, *chosen})
        config = _changed(saved, {"availability": {"without": without}})
        return RunFolder.create(_new_path(finished, out, suffix), config).path
    from ccfcpp.clustering.run import clustering_run

    later = WarmStart.of(finished, out, suffix, gone=chosen)
    return later.begin(clustering_run(later.config).algorithm)


def finished_run(path: Path, needs: str = "", instead: str = "") -> RunFolder:
    """Return the folder of a finished run of clustering.

    Args:
        path: The folder.
        needs: What needs the images in this process; empty if they may be on other machines.
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
            f"the images of the run in {path} are with its clients, on other machines, and {needs} "
            f"needs them: {instead or give}"
        )
    if not needs and not folder.deployment.exists():
        raise UsageError(f"{path} holds no run of ccfcpp serve: {give}")
    if not folder.summary.is_file() or not folder.checkpoint.is_file():
        raise UsageError(
            f"the run in {path} is not finished: go on with it by ccfcpp {command} --out "
            f"{shlex.quote(str(path))} --resume, or {give}"
        )
    return folder


@dataclass(frozen=True)
class WarmStart:
    """A run that starts with the model of a finished one, of Fed-SCAN.

    Attributes:
        finished: Folder of the finished run.
        known: Numbers of its clients.
        config: Settings of the new run.
        path: Folder of the new run, which does not exist yet.
    """

    finished: RunFolder
    known: Sequence[int]
    config: ClusterConfig
    path: Path

    @classmethod
    def of(
        cls,
        finished: RunFolder,
        out: Path | None,
        suffix: str,
        *,
        given: Tree | None = None,
        newcomers: Sequence[str] = (),
        gone: Collection[int] = (),
        known: Sequence[int] | None = None,
    ) -> Self:
        """Plan a run with more clients and clusters, or with fewer clients.

        Args:
            finished: Folder of the finished run.
            out: Folder of the new run; beside the finished one, with the suffix, if it is None.
            suffix: Suffix of the new folder's name.
            given: Settings over those of the finished run.
            newcomers: Paths of new clients' samples.
            gone: Numbers of the clients that are left out.
            known: Numbers of the finished run's clients; None: from 0, as its summary counts them.

        Raises:
            UsageError: The run cannot be continued, the settings do not fit it, or the folder is
                taken.
        """
        _check(finished, given or {}, "--from" if newcomers else "forget --quick")
        saved, summary = finished.saved_config(ClusterConfig), finished.read_summary()
        known = range(summary["clients"]) if known is None else known
        there = {one["client"] for one in summary["participants"]} - {*gone}
        differing: Tree = {
            "data": {"newcomers": [*saved.data.newcomers, *newcomers]},
            "scan": _fewer_steps(finished),
            "availability": {
                # Rounds are few, so that all have to be there.
                **{"dropout_rate": 0.0, "sample_fraction": 1.0, "late": [], "late_rounds": 1},
                # Who was absent for the whole run stays so, and nobody else is drawn.
                **{"disconnection_rate": 0.0, "without": sorted({*known} - there)},
            },
        }
        config = _changed(saved, differing, given or {})
        return cls(finished, known, config, _new_path(finished, out, suffix))

    def begin(
        self,
        algorithm: ClusteringAlgorithm[Any],
        add: Callable[[RunFolder], None] = lambda folder: None,
    ) -> Path:
        """Make the folder of the new run, and write a checkpoint before its first round.

        Args:
            algorithm: The system of the new run.
            add: Writes more files into the folder.

        Raises:
            UsageError: There would be new clients, and no new clusters.
        """
        from ccfcpp.clustering.systems.fed_scan.algorithm import FedScan
        from ccfcpp.clustering.systems.fed_scan.newcomers import GrowingScan, inherited
        from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

        assert isinstance(algorithm, FedScan)  # as on images, and vectors as they are
        device, randomness = algorithm.problem.device, Randomness(self.config.seed)
        last = load_checkpoint(self.finished.checkpoint, algorithm.state_type, device).state
        state = (
            algorithm.grown(last, self.known, randomness)
            if isinstance(algorithm, GrowingScan)
            else inherited(algorithm, last, randomness)
        )
        # A folder without its checkpoint would begin from nothing when it is resumed.
        parent = self.path.parent
        parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=parent, prefix=".from-") as place:
            whole = RunFolder.create(Path(place) / "run", self.config)
            save_checkpoint(whole.checkpoint, Checkpoint(0, state, {}, {}))
            add(whole)
            whole.path.rename(self.path)
        return self.path


def _check(finished: RunFolder, given: Tree, asked: str) -> None:
    """Refuse a run that cannot be continued, and settings that the new run may not change."""
    path, saved, why = finished.path, finished.saved_config(ClusterConfig), ""
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
        raise UsageError(f"{asked} cannot go on from {path}, which {why}")
    for key, _ in flatten(given):
        if key not in _MAY_DIFFER:
            why = f" cannot differ from that of {path}, from which the run goes on: leave it out"
            raise UsageError(KeyValue(key), why)


def _new_path(finished: RunFolder, out: Path | None, suffix: str) -> Path:
    """Return the folder of a new run, by default beside the finished one."""
    path = finished.path.resolve()
    folder = RunFolder(out or path.with_name(f"{path.name}-{suffix}"))
    folder.refuse_if_taken()
    return folder.path


def _changed(saved: ClusterConfig, *changes: Tree) -> ClusterConfig:
    kind = type(saved)
    return validate(kind, stack(kind, saved.model_dump(mode="json"), *changes))


def _numbers(finished: RunFolder, clients: Sequence[str]) -> list[int]:
    """Return the numbers of clients that took part in a finished run; some must be left."""
    there = {one["client"]: one["name"] for one in finished.read_summary()["participants"]}
    chosen = set[int]()
    for client in clients:
        if (number := number_of_client(client, there)) is None:
            raise UsageError(
                f"no client {client} took part in {finished.path}: give one of "
                f"{first_of([*there.values()])}"
            )
        chosen.add(number)
    if len(chosen) == len(there):
        raise UsageError(
            f"{finished.path} without all of its clients would have nobody: name fewer"
        )
    return sorted(chosen)


def number_of_client(asked: str, names: Mapping[int, str]) -> int | None:
    """Return the number of a client that is asked for by its name, or else by its number."""
    called = {str(number): number for number in names}
    called |= {canonical(name): number for number, name in names.items()}
    return called.get(canonical(asked))


def _went_on(finished: RunFolder) -> bool:
    """Return whether a finished run itself started with another run's model."""
    config = finished.saved_config(ClusterConfig)
    if config.method != "fed-scan":
        return False
    with safe_open(finished.model, framework="pt") as file:
        return int(file.get_tensor("version")) > config.section(ScanConfig).steps


def _fewer_steps(finished: RunFolder) -> Tree:
    """Return the settings of Fed-SCAN for a run that starts with a finished run's model."""
    if _went_on(finished):  # It has few steps itself.
        return {"last_balance": None}
    scan = finished.saved_config(ClusterConfig).section(ScanConfig)
    return {
        "last_balance": None,
        "steps": max(_LEAST_STEPS, round(scan.steps * _SHARE_OF_STEPS)),
        "matrix_rate": scan.matrix_rate * _FASTER,
    }
