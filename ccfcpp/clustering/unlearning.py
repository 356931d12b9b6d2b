"""Runs without some clients of a finished one: as if these had not been there, or nearly so."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.warm_start import (
    ALL_THERE,
    WarmStart,
    check_from,
    fewer_steps,
    finished_run,
    went_on,
)
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import stack, validate
from ccfcpp.core.errors import UsageError
from ccfcpp.core.names import canonical
from ccfcpp.runs.folder import RunFolder

_MOST_NAMES = 20
"""The most clients that are named."""


def run_without(
    path: Path, clients: Sequence[str], out: Path | None = None, *, quick: bool = False
) -> Path:
    """Make the folder of a run like a finished one, without some of its clients.

    The new run has the same settings and seed, and random numbers follow from the seed, the round
    and the client. So it is the run that there would have been without these clients.

    Args:
        path: Folder of the finished run.
        clients: Names or numbers of clients, as its summary has them. Names go first.
        out: Folder of the new run; beside the finished one where it is None.
        quick: Begin with the model of the finished run, of Fed-SCAN, and take a fifth of its steps,
            so that little of these clients is left; ``ccfcpp.clustering.leakage`` measures it.

    Returns:
        The new folder, in which the run can be resumed from its start.

    Raises:
        UsageError: There is no such run or client, nobody would be left, the folder is taken, or
            none can go on from the run.
    """
    folder = finished_run(path, "a new run", "start ccfcpp serve again without the client's key")
    chosen = _numbers(folder, clients)
    saved = folder.saved_config(ClusterConfig)
    if saved.data.newcomers:
        raise UsageError(
            f"the run in {path} went on from another one, which knew its clients, too: forget the "
            "client there, and go on from what that gives by ccfcpp cluster --from"
        )
    left_out = {"availability": {"without": sorted({*saved.availability.without, *chosen})}}
    config = _changed(saved, left_out)
    new = RunFolder(out or path.with_name(f"{path.name}-without-{'-'.join(map(str, chosen))}"))
    if quick:
        return _from_its_model(folder, config, new)
    if went_on(folder):
        raise UsageError(
            f"the run in {path} went on from another one, which knew its clients, too: forget the "
            "client there"
        )
    return RunFolder.create(new.path, config).path


def _numbers(folder: RunFolder, clients: Sequence[str]) -> list[int]:
    """Return the numbers of clients that took part in a finished run; some must be left."""
    there, path = folder.read_summary()["participants"], folder.path
    numbers = {str(one["client"]): one["client"] for one in there}
    numbers |= {canonical(one["name"]): one["client"] for one in there}
    if unknown := [client for client in clients if canonical(client) not in numbers]:
        names = ", ".join(one["name"] for one in there[:_MOST_NAMES])
        more = ", …" if len(there) > _MOST_NAMES else ""
        raise UsageError(f"no client {unknown[0]} took part in {path}: give one of {names}{more}")
    chosen = sorted({numbers[canonical(client)] for client in clients})
    if len(chosen) == len(there):
        raise UsageError(f"{path} without all of its clients would have nobody: name fewer")
    return chosen


def _from_its_model(finished: RunFolder, config: ClusterConfig, new: RunFolder) -> Path:
    from ccfcpp.clustering.run import clustering_run
    from ccfcpp.clustering.systems.fed_scan.network import MERGE

    check_from(finished, {}, "forget --quick")
    new.refuse_if_taken()
    fewer: Tree = {} if went_on(finished) else {"scan": fewer_steps(finished)}
    later = WarmStart(finished, _changed(config, fewer | {"availability": ALL_THERE}), new)
    run = clustering_run(later.config)
    last, begun = later.last(run.algorithm, run.device), run.initial_state
    # A merge would keep to shares in which the forgotten clients count.
    merge = {name: part for name, part in begun.model.items() if name.startswith(MERGE)}
    state = replace(last, model=last.model | merge, descent=begun.descent, centroids=None)
    return later.begin(state)


def _changed(config: ClusterConfig, changes: Tree) -> ClusterConfig:
    kind = type(config)
    return validate(kind, stack(kind, config.model_dump(mode="json"), changes))
