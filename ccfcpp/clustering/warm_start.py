"""A run that goes on from a finished one: with new clients and clusters, or without a client.

The new run's folder has a checkpoint before its first round, from which it is resumed.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig
from ccfcpp.core.config_layers import flatten, read_yaml, stack, validate
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.runs.folder import RunFolder

if TYPE_CHECKING:
    import torch

    from ccfcpp.clustering.algorithm import ClusteringAlgorithm
    from ccfcpp.core.config import Tree
    from ccfcpp.core.randomness import Randomness

_SHARE_OF_STEPS, _LEAST_STEPS = 0.2, 10
"""The share of a finished run's steps, and the fewest steps, that the one that goes on makes."""

_FASTER = 2.0
"""Times the finished run's rate of matrices: steps are few."""

_MAY_DIFFER = (
    "availability.dropout_rate", "availability.sample_fraction", "clusters", "device", "track",
    "evaluate_every", "data.skip", "scan.steps", "scan.batch", "scan.steps_per_round",
    "scan.learning_rate", "scan.matrix_rate", "scan.mine_every",
)  # fmt: skip

ALL_THERE: Tree = {"dropout_rate": 0.0, "sample_fraction": 1.0, "late": [], "late_rounds": 1}
"""Availability in a run of few rounds."""

_GIVE = "give the folder of a finished run of ccfcpp cluster"


def finished_run(path: Path, needs: str, instead: str = _GIVE) -> RunFolder:
    """Return the folder of a finished run whose images are in this process.

    Args:
        path: The folder.
        needs: What needs the images, for a run whose images are on other machines.
        instead: What to do about such a run.

    Raises:
        UsageError: There is no such run.
    """
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise UsageError(f"{path} holds no run (no config.yaml): {_GIVE}")
    method = read_yaml(folder.config).get("method")
    if method not in METHODS:
        raise UsageError(f"{path} holds no run of clustering (method = {method}): {_GIVE}")
    if folder.deployment.exists():
        raise UsageError(
            f"the images of the run in {path} are with its clients, on other machines, and {needs} "
            f"needs them: {instead}"
        )
    if not folder.summary.is_file() or not folder.checkpoint.is_file():
        raise UsageError(
            f"the run in {path} is not finished: go on with it by ccfcpp cluster --out "
            f"{shlex.quote(str(path))} --resume, or {_GIVE}"
        )
    return folder


def run_with(path: Path, newcomers: str, given: Tree, out: Path | None = None) -> Path:
    """Make the folder of a run that goes on from a finished one, with new clients and clusters.

    The finished run's clients take part again, and its clusters keep their numbers. The new run
    begins with its encoder and clusters, and takes a fifth of its steps
    (``ccfcpp.clustering.systems.fed_scan.newcomers``).

    Args:
        path: Folder of the finished run, of Fed-SCAN.
        newcomers: Where the new clients' images or vectors lie.
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
    folder = finished_run(path, "a run that goes on from it", instead)
    later = WarmStart.of(folder, newcomers, given, out, f"with-{Path(newcomers).stem}")
    run = clustering_run(later.config)
    return later.begin(later.grown(run.algorithm, run.device, run.randomness))


@dataclass(frozen=True)
class WarmStart:
    """A run that goes on from a finished one of Fed-SCAN.

    Attributes:
        finished: Folder of the finished run.
        config: Settings of the new run.
        folder: Its folder, which is not taken.
        known: Numbers of the finished run's clients.
    """

    finished: RunFolder
    config: ClusterConfig
    folder: RunFolder
    known: Sequence[int] = ()

    @staticmethod
    def of(
        finished: RunFolder,
        newcomers: str,
        given: Tree,
        out: Path | None,
        suffix: str,
        known: Sequence[int] | None = None,
    ) -> WarmStart:
        """Plan a run with new clients and clusters.

        Args:
            finished: Folder of the finished run.
            newcomers: Where the new clients' samples lie.
            given: Settings over those of the finished run.
            out: Folder of the new run; beside the finished one, with the suffix, if it is None.
            suffix: What is added to the name of the finished run's folder.
            known: Numbers of its clients, if its summary does not number them from 0.

        Raises:
            UsageError: None can go on from the run, the settings do not fit it, or the folder is
                taken.
        """
        check_from(finished, given)
        saved = finished.saved_config(ClusterConfig)
        summary = finished.read_summary()
        known = range(summary["clients"]) if known is None else known
        absent = sorted(set(known) - {one["client"] for one in summary["participants"]})
        differing = {
            "data": {"newcomers": [*saved.data.newcomers, newcomers]},
            "scan": fewer_steps(finished),
            # Who was absent for the whole run is not drawn again, and newcomers have to be there.
            "availability": {**ALL_THERE, "disconnection_rate": 0.0, "without": absent},
        }
        kind, path = type(saved), finished.path.resolve()
        config = validate(kind, stack(kind, saved.model_dump(mode="json"), differing, given))
        new = RunFolder(out or path.with_name(f"{path.name}-{suffix}"))
        new.refuse_if_taken()
        return WarmStart(finished, config, new, known)

    def last(self, algorithm: ClusteringAlgorithm[Any], device: torch.device) -> Any:
        """Return the last state of the finished run."""
        from ccfcpp.engine.checkpoint import load_checkpoint

        return load_checkpoint(self.finished.checkpoint, algorithm.state_type, device).state

    def grown(
        self, algorithm: ClusteringAlgorithm[Any], device: torch.device, randomness: Randomness
    ) -> Any:
        """Return the state in which the new run's algorithm begins.

        Raises:
            UsageError: There would be no new clusters.
        """
        from ccfcpp.clustering.systems.fed_scan.newcomers import GrowingScan, to_grow

        assert isinstance(algorithm, GrowingScan)  # as on images, and vectors as they are
        last = self.last(algorithm, device)
        known, wanted = int(last.groups.max()) + 1, algorithm.problem.clusters
        if wanted <= known or algorithm.overclusters <= len(last.groups):
            raise UsageError(
                KeyValue("clusters", wanted),
                f" is no more than the {known} of the finished run: give more; "
                "images of its clusters need no training (ccfcpp predict)",
            )
        return to_grow(algorithm.initial_state(randomness), last, self.known)

    def begin(self, state: Any, add: Callable[[RunFolder], None] = lambda folder: None) -> Path:
        """Make the folder of the new run in a state; ``add`` writes more files into it."""
        from ccfcpp.engine.checkpoint import Checkpoint, save_checkpoint

        # A folder without its checkpoint would begin from nothing when it is resumed.
        parent = self.folder.path.parent
        parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=parent, prefix=".from-") as place:
            whole = RunFolder.create(Path(place) / "run", self.config)
            save_checkpoint(whole.checkpoint, Checkpoint(0, state, {}, {}))
            add(whole)
            whole.path.rename(self.folder.path)
        return self.folder.path


def check_from(finished: RunFolder, given: Tree, asked: str = "--from") -> None:
    """Refuse a run from which none can go on, and settings that are not the new run's to choose.

    Raises:
        UsageError: In one line, what to do instead.
    """
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


def went_on(finished: RunFolder) -> bool:
    """Return whether a finished run, of Fed-SCAN, began with another one's model."""
    config = finished.saved_config(ClusterConfig)
    if config.method != "fed-scan":
        return False
    with safe_open(finished.model, framework="pt") as file:
        return int(file.get_tensor("version")) > config.section(ScanConfig).steps


def fewer_steps(finished: RunFolder) -> Tree:
    """Return the settings of Fed-SCAN that differ in a run that goes on from a finished one."""
    if went_on(finished):  # It has few steps itself.
        return {"last_balance": None}
    scan = finished.saved_config(ClusterConfig).section(ScanConfig)
    return {
        "last_balance": None,
        "steps": max(_LEAST_STEPS, round(scan.steps * _SHARE_OF_STEPS)),
        "matrix_rate": scan.matrix_rate * _FASTER,
    }
