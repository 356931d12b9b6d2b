"""A run that goes on from a finished one, with new clients and new clusters."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.finished import finished_run
from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.core.config_layers import flatten, stack, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.folder import RunFolder

if TYPE_CHECKING:
    from ccfcpp.core.config import Tree

_SHARE_OF_STEPS, _LEAST_STEPS = 0.2, 10
"""Of a finished run's, for the one that goes on from it."""

_FASTER = 2.0
"""Times the finished run's rate of matrices: steps are few."""

_MAY_DIFFER = (
    "clusters", "device", "track", "evaluate_every", "data.skip", "scan.steps", "scan.batch",
    "scan.steps_per_round", "scan.learning_rate", "scan.matrix_rate", "scan.mine_every",
)  # fmt: skip


def run_with(path: Path, newcomers: str, given: Tree, out: Path | None = None) -> Path:
    """Make the folder of a run that goes on from a finished one, with new clients and clusters.

    The finished run's clients take part again, and its clusters keep their numbers. The new run
    begins with its encoder and clusters, and takes a fifth of its steps
    (``ccfcpp.clustering.scan.newcomers``).

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
    from ccfcpp.clustering.experiment import ClusteringExperiment
    from ccfcpp.clustering.scan.algorithm import FedScan
    from ccfcpp.clustering.scan.newcomers import extended
    from ccfcpp.engine.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

    folder = finished_run(path, "a run that goes on from it")
    saved = folder.saved_config(ClusterConfig)
    _check(path, saved, given)
    path = path.resolve()
    new = RunFolder(out or path.with_name(f"{path.name}-with-{Path(newcomers).stem}"))
    new.refuse_if_taken()
    summary = folder.read_summary()
    there = {one["client"] for one in summary["participants"]}
    absent = sorted(set(range(summary["clients"])) - there)
    kind = type(saved)
    later = _later(saved, newcomers, absent)
    config = validate(kind, stack(kind, saved.model_dump(mode="json"), later, given))
    experiment = ClusteringExperiment(config)
    algorithm = experiment.algorithm
    assert isinstance(algorithm, FedScan)  # as on images, and vectors as they are
    checkpoint = load_checkpoint(folder.checkpoint, algorithm.state_type, experiment.device)
    others = [one for one in experiment.clients if one.id >= summary["clients"]]
    least = config.privacy.smallest_count
    state = extended(algorithm, checkpoint.state, others, least, experiment.randomness)
    # A folder without its checkpoint would begin from nothing when it is resumed.
    new.path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=new.path.parent, prefix=".from-") as place:
        whole = RunFolder.create(Path(place) / "run", config)
        save_checkpoint(whole.checkpoint, Checkpoint(0, state, {}, {}))
        whole.path.rename(new.path)
    return new.path


def _check(path: Path, saved: ClusterConfig, given: Tree) -> None:
    """Refuse a run from which none can go on, and settings that are not the new run's to choose."""
    why = ""
    if saved.method != "fed-scan":
        why = f"is of {saved.method}: run it again with --method fed-scan"
    elif saved.fewest_clusters:
        why = "found its number of clusters: run it again with that number, by --clusters"
    elif saved.privacy.level != "none" or saved.privacy.secure_sums:
        why = "has protected sums, and newcomers send centres as they are"
    elif saved.data.encoder is not None:
        why = "makes its own vectors: make them by ccfcpp embed, and run it again on these"
    elif saved.section(ScanConfig).first_neighbours == "transform":
        why = "has its clients learn a transform: run it again with other scan.first_neighbours"
    elif not saved.vectors.is_plain:
        why = "prepares its vectors: run it again with --scale none"
    if why:
        raise UsageError(f"--from cannot go on from {path}, which {why}")
    for key, _ in flatten(given):
        if key not in _MAY_DIFFER:
            raise UsageError(
                f"{key} cannot differ from that of {path}, from which the run goes on: leave it out"
            )


def _later(saved: ClusterConfig, newcomers: str, absent: list[int]) -> Tree:
    """What is different in the new run."""
    scan = saved.section(ScanConfig)
    fewer: Tree = {"last_balance": None}
    if not saved.data.newcomers:  # else this has been done
        fewer["steps"] = max(_LEAST_STEPS, round(scan.steps * _SHARE_OF_STEPS))
        fewer["matrix_rate"] = scan.matrix_rate * _FASTER
    return {
        "data": {"newcomers": [*saved.data.newcomers, newcomers]},
        "scan": fewer,
        # Who was absent for the whole run is not drawn again.
        "availability": {"disconnection_rate": 0.0, "without": absent},
    }
