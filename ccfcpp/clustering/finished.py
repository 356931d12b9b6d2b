"""Finished runs of clustering, run again without some clients, or gone on from with more."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import read_yaml, stack, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.runs.folder import RunFolder

_MOST_NAMES = 20
"""Of clients that can be named."""


_SHARE_OF_STEPS, _LEAST_STEPS = 0.1, 10
"""Of a finished run's, for a run that goes on from it."""

_FASTER = 2.0
"""Times the finished run's rate of matrices: steps are few."""

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


def run_without(path: Path, clients: Sequence[str], out: Path | None = None) -> Path:
    """Make the folder of a run like a finished one, without some of its clients.

    The new run has the same settings and seed, and random numbers follow from the seed, the round
    and the client. So it is the run that there would have been without these clients.

    Args:
        path: Folder of the finished run.
        clients: Names or numbers of clients, as its summary has them. Names go first.
        out: Folder of the new run; beside the finished one where it is None.

    Returns:
        The new folder, in which the run can be resumed from its start.

    Raises:
        UsageError: There is no such run or client, nobody would be left, or the folder is taken.
    """
    folder = finished_run(path, "a new run", "start ccfcpp serve again without the client's key")
    there = folder.read_summary()["participants"]
    numbers = {str(one["client"]): one["client"] for one in there}
    numbers |= {one["name"]: one["client"] for one in there}
    if unknown := [client for client in clients if client not in numbers]:
        names = ", ".join(one["name"] for one in there[:_MOST_NAMES])
        more = ", …" if len(there) > _MOST_NAMES else ""
        raise UsageError(f"no client {unknown[0]} took part in {path}: give one of {names}{more}")
    chosen = sorted({numbers[client] for client in clients})
    if len(chosen) == len(there):
        raise UsageError(f"{path} without all of its clients would have nobody: name fewer")
    saved = folder.saved_config(ClusterConfig)
    without = {"availability": {"without": sorted({*saved.availability.without, *chosen})}}
    kind = type(saved)
    config = validate(kind, stack(kind, saved.model_dump(mode="json"), without))
    new = out or path.with_name(f"{path.name}-without-{'-'.join(map(str, chosen))}")
    return RunFolder.create(new, config).path


def run_with(path: Path, newcomers: str, given: Tree, out: Path | None = None) -> Path:
    """Make the folder of a run that goes on from a finished one, with new clients and clusters.

    The finished run's clients take part again, and its clusters keep their numbers. The new run
    begins with its encoder and clusters, and takes a tenth of its steps
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
    if saved.method != "fed-scan":
        raise UsageError(
            f"the run in {path} is of {saved.method}, and --from goes on from one of fed-scan: run "
            "again with --method fed-scan"
        )
    if saved.privacy.level != "none" or saved.privacy.secure_sums:
        raise UsageError(
            f"the run in {path} has protected sums, and newcomers send centres as they are: --from "
            "goes on from a run without privacy"
        )
    scan = saved.section(ScanConfig)
    fewer: Tree = {
        "steps": max(_LEAST_STEPS, round(scan.steps * _SHARE_OF_STEPS)),
        "matrix_rate": scan.matrix_rate * _FASTER,
    }
    later: Tree = {"data": {"newcomers": [*saved.data.newcomers, newcomers]}, "scan": fewer}
    kind = type(saved)
    config = validate(kind, stack(kind, saved.model_dump(mode="json"), later, given))
    experiment = ClusteringExperiment(config)
    algorithm = experiment.algorithm
    if not isinstance(algorithm, FedScan):
        raise UsageError(
            f"the run in {path} is on vectors that it has scaled: --from goes on from vectors as "
            "they are (--scale none)"
        )
    before = folder.read_summary()["clients"]
    checkpoint = load_checkpoint(folder.checkpoint, algorithm.state_type, experiment.device)
    new_clients = [one for one in experiment.clients if one.id >= before]
    state = extended(algorithm, checkpoint.state, new_clients, experiment.randomness)
    new = RunFolder.create(
        out or path.with_name(f"{path.name}-with-{Path(newcomers).stem}"), config
    )
    save_checkpoint(new.checkpoint, Checkpoint(0, state, {}, {}))
    return new.path
