"""Finished runs of clustering, and running them again without some clients."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS
from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.core.config_layers import read_yaml, stack, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.names import canonical
from ccfcpp.runs.folder import RunFolder

_MOST_NAMES = 20
"""Of clients that can be named."""


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
    folder, config, new = without(path, clients, out)
    if went_on(folder):
        raise UsageError(
            f"the run in {path} went on from another one, which knew its clients, too: forget the "
            "client there"
        )
    return RunFolder.create(new, config).path


def went_on(folder: RunFolder) -> bool:
    """Whether a finished run, of Fed-SCAN, began with another one's model."""
    config = folder.saved_config(ClusterConfig)
    if config.method != "fed-scan":
        return False
    with safe_open(folder.model, framework="pt") as file:
        return int(file.get_tensor("version")) > config.section(ScanConfig).steps


def without(
    path: Path, clients: Sequence[str], out: Path | None
) -> tuple[RunFolder, ClusterConfig, Path]:
    """A finished run, its settings without some of its clients, and where that run is to lie.

    Arguments and errors are those of ``run_without``.
    """
    folder = finished_run(path, "a new run", "start ccfcpp serve again without the client's key")
    there = folder.read_summary()["participants"]
    numbers = {str(one["client"]): one["client"] for one in there}
    numbers |= {canonical(one["name"]): one["client"] for one in there}
    if unknown := [client for client in clients if canonical(client) not in numbers]:
        names = ", ".join(one["name"] for one in there[:_MOST_NAMES])
        more = ", …" if len(there) > _MOST_NAMES else ""
        raise UsageError(f"no client {unknown[0]} took part in {path}: give one of {names}{more}")
    chosen = sorted({numbers[canonical(client)] for client in clients})
    if len(chosen) == len(there):
        raise UsageError(f"{path} without all of its clients would have nobody: name fewer")
    saved = folder.saved_config(ClusterConfig)
    if saved.data.newcomers:
        raise UsageError(
            f"the run in {path} went on from another one, which knew its clients, too: forget the "
            "client there, and go on from what that gives by ccfcpp cluster --from"
        )
    left_out = {"availability": {"without": sorted({*saved.availability.without, *chosen})}}
    kind = type(saved)
    config = validate(kind, stack(kind, saved.model_dump(mode="json"), left_out))
    new = out or path.with_name(f"{path.name}-without-{'-'.join(map(str, chosen))}")
    return folder, config, new
