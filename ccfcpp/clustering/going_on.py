"""A run that goes on from a finished one: with new clients and clusters, or without a client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.finished import finished_run, went_on, without
from ccfcpp.clustering.scan.config import ScanConfig
from ccfcpp.core.config_layers import flatten, stack, validate
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.runs.folder import RunFolder

if TYPE_CHECKING:
    from ccfcpp.clustering.kmeans.lloyd import EncoderState
    from ccfcpp.clustering.scan.algorithm import FedScan
    from ccfcpp.clustering.scan.newcomers import GrowingState
    from ccfcpp.core.config import Tree
    from ccfcpp.core.randomness import Randomness

_SHARE_OF_STEPS, _LEAST_STEPS = 0.2, 10
"""Of a finished run's, for the one that goes on from it."""

_FASTER = 2.0
"""Times the finished run's rate of matrices: steps are few."""

SERVE = "go on from it by ccfcpp serve --from"
"""What to do about a finished run whose images are on other machines."""

_MAY_DIFFER = (
    "availability.dropout_rate", "availability.sample_fraction", "clusters", "device", "track",
    "evaluate_every", "data.skip", "scan.steps", "scan.batch", "scan.steps_per_round",
    "scan.learning_rate", "scan.matrix_rate", "scan.mine_every",
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
    from ccfcpp.clustering.run import clustering_run

    folder = finished_run(path, "a run that goes on from it", SERVE)
    check_from(folder, given)
    numbers = range(folder.read_summary()["clients"])
    config = later_config(folder, newcomers, given, numbers)
    path = path.resolve()
    new = RunFolder(out or path.with_name(f"{path.name}-with-{Path(newcomers).stem}"))
    new.refuse_if_taken()
    experiment = clustering_run(config)
    state = first_state(folder, experiment.algorithm, numbers, experiment.randomness)
    create(new, config, state)
    return new.path


def go_on_without(path: Path, clients: Sequence[str], out: Path | None = None) -> Path:
    """Make the folder of a run that goes on from a finished one without some of its clients.

    It begins with the finished run's model and takes a fifth of its steps, so that little of these
    clients is left; ``ccfcpp.clustering.leakage`` measures it.

    Args:
        path: Folder of the finished run, of Fed-SCAN.
        clients: Names or numbers of clients, as its summary has them.
        out: Folder of the new run; beside the finished one where it is None.

    Returns:
        The new folder, in which the run can be resumed from its start.

    Raises:
        UsageError: There is no such run or client, nobody would be left, the folder is taken, or
            none can go on from the run.
    """
    from ccfcpp.clustering.run import clustering_run
    from ccfcpp.clustering.scan.network import MERGE
    from ccfcpp.engine.checkpoint import load_checkpoint

    finished, config, place = without(path, clients, out)
    check_from(finished, {}, "forget --quick")
    new, kind = RunFolder(place), type(config)
    new.refuse_if_taken()
    fewer: Tree = {} if went_on(finished) else {"scan": _fewer(config.section(ScanConfig))}
    fewer |= {"availability": _ALL_THERE}
    config = validate(kind, stack(kind, config.model_dump(mode="json"), fewer))
    experiment = clustering_run(config)
    algorithm = experiment.algorithm
    last = load_checkpoint(finished.checkpoint, algorithm.state_type, experiment.device).state
    begun = algorithm.initial_state(experiment.randomness)
    # A merge would keep to shares in which the forgotten clients count.
    merge = {name: part for name, part in begun.model.items() if name.startswith(MERGE)}
    model = last.model | merge
    create(new, config, replace(last, model=model, descent=begun.descent, centroids=None))
    return new.path


def later_config(
    finished: RunFolder, newcomers: str, given: Tree, numbers: Iterable[int]
) -> ClusterConfig:
    """The settings of a run that goes on from a finished one, whose clients have these numbers."""
    saved = finished.saved_config(ClusterConfig)
    there = {one["client"] for one in finished.read_summary()["participants"]}
    absent = sorted(set(numbers) - there)
    # A run that went on itself has few steps.
    kind, later = type(saved), _later(saved, newcomers, absent, went_on(finished))
    return validate(kind, stack(kind, saved.model_dump(mode="json"), later, given))


def first_state(
    finished: RunFolder, algorithm: Any, numbers: Iterable[int], randomness: Randomness
) -> GrowingState:
    """The state in which a run of an algorithm goes on from a finished one.

    Raises:
        UsageError: There would be no new clusters.
    """
    from ccfcpp.clustering.scan.newcomers import GrowingScan, to_grow
    from ccfcpp.engine.checkpoint import load_checkpoint

    assert isinstance(algorithm, GrowingScan)  # as on images, and vectors as they are
    device = algorithm.problem.device
    last = load_checkpoint(finished.checkpoint, algorithm.state_type, device).state
    _check_more(algorithm, last)
    return to_grow(algorithm.initial_state(randomness), last, numbers)


def create(
    new: RunFolder,
    config: ClusterConfig,
    state: EncoderState,
    add: Callable[[RunFolder], None] = lambda folder: None,
) -> None:
    """Make the folder of a run that goes on in a state; ``add`` writes more files into it."""
    from ccfcpp.engine.checkpoint import Checkpoint, save_checkpoint

    # A folder without its checkpoint would begin from nothing when it is resumed.
    new.path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=new.path.parent, prefix=".from-") as place:
        whole = RunFolder.create(Path(place) / "run", config)
        save_checkpoint(whole.checkpoint, Checkpoint(0, state, {}, {}))
        add(whole)
        whole.path.rename(new.path)


def _check_more(algorithm: FedScan, finished: EncoderState) -> None:
    """Refuse a run that would have no new clusters."""
    from ccfcpp.clustering.scan.server import snapshot

    groups = snapshot(finished).groups
    assert groups is not None
    known, wanted = int(groups.max()) + 1, algorithm.problem.clusters
    if wanted <= known or algorithm.overclusters <= len(groups):
        raise UsageError(
            KeyValue("clusters", wanted),
            f" is no more than the {known} of the finished run: give more; "
            "images of its clusters need no training (ccfcpp predict)",
        )


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
            raise UsageError(
                f"{key} cannot differ from that of {path}, from which the run goes on: leave it out"
            )


def _later(saved: ClusterConfig, newcomers: str, absent: list[int], begun: bool) -> Tree:
    """What is different in the new run."""
    return {
        "data": {"newcomers": [*saved.data.newcomers, newcomers]},
        "scan": {"last_balance": None} if begun else _fewer(saved.section(ScanConfig)),
        # Who was absent for the whole run is not drawn again, and newcomers have to be there.
        "availability": {**_ALL_THERE, "disconnection_rate": 0.0, "without": absent},
    }


_ALL_THERE: Tree = {"dropout_rate": 0.0, "sample_fraction": 1.0, "late": [], "late_rounds": 1}
"""In a run of few rounds."""


def _fewer(scan: ScanConfig) -> Tree:
    """The steps of a run that goes on."""
    return {
        "last_balance": None,
        "steps": max(_LEAST_STEPS, round(scan.steps * _SHARE_OF_STEPS)),
        "matrix_rate": scan.matrix_rate * _FASTER,
    }
