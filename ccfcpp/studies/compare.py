"""Comparisons from Python, behind ``ccfcpp compare`` and ``ccfcpp.compare``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.clustering.api import CLUSTERING
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.methods import METHODS, check_takes
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import Layers, flatten, resolve, unflatten
from ccfcpp.core.data_kinds import DataKind
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.runs.paths import Json, RunPaths, new_path, required_out
from ccfcpp.studies.grids import PlannedRun, StudySpec, split_axes

if TYPE_CHECKING:
    from ccfcpp.studies.comparison import Comparison
    from ccfcpp.studies.study import Study

ALL_SKEWS = (0.0, 0.25, 0.5, 0.75, 1.0)
BESIDE_PUBLISHED: Tree = {"preset": "published"}
"""Settings under the user's, so that our values are comparable with the papers' in the tables."""
_NO_AXES = {
    "dataset": "compare on each by itself, and join the studies by ccfcpp report",
    "seed": "give a number of seeds",
}


def compare(
    settings: Mapping[str, object] | None = None,
    *,
    seeds: int = 1,
    jobs: int = 1,
    baseline: str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Json:
    """Run several methods on the same data, partitions and seeds, and compare their scores.

    Args:
        settings: Settings that override the data set's preset, nested or by dotted key. If a key
            takes one value, a list for it is an axis of the study: all combinations of such lists
            are run, for instance
            ``{"method": ["k-fed", "ccfc++"], "partition.p": [0, 1], "loss.eta": [0, 0.1]}``.
        seeds: Number of seeds for each combination of settings.
        jobs: Number of runs at once. If it is more than 1, runs have processes of their own, and a
            script needs ``if __name__ == "__main__":``.
        baseline: Method that the others are tested against; None: the best of each column.
        out: Folder of the study; a new one under ``runs/`` if it is None.
        resume: Whether to resume the study in ``out``, and to add the runs that it lacks.

    Returns:
        ``out``: the study's folder; ``table``: a row of numbers for each combination of settings;
        ``costs``: traffic and time of each method.

    Raises:
        UsageError: A key is unknown, a value is not allowed, or ``out`` holds something else.

    Example:
        >>> import tempfile
        >>> import ccfcpp
        >>> settings = {"dataset": "digits", "method": ["k-fed", "ffcm-avg"], "partition.p": 0}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     study = ccfcpp.compare({**settings, "data.images": 100}, out=folder)
        >>> print(*(row["method"] for row in study["table"]))
        k-fed ffcm-avg
    """
    from ccfcpp.engine.distributed import run_in_first
    from ccfcpp.runs.run import make_follower
    from ccfcpp.studies.parallel import run_in_processes

    def lead() -> Json:
        layers, place = [unflatten(settings or {})], None if out is None else Path(out)
        study = open_comparison(layers, seeds, place, resume, baseline, say=warnings.warn)
        if jobs == 1:
            study.run(lambda title, run, folder: run.run(folder))
        else:
            run_in_processes(study, jobs, lambda: None, lambda: False)
        comparison = write_tables(study)
        return {"out": str(study.path), "table": comparison.rows, "costs": comparison.costs()}

    return run_in_first(lead, make_follower(CLUSTERING.remake))


def open_comparison(
    layers: Layers,
    seeds: int,
    out: Path | None,
    resume: bool,
    baseline: str | None = None,
    *,
    say: Callable[[str], None],
) -> Study[ClusterConfig]:
    """Plan a new comparison, or reopen one and plan runs for added settings; nothing is run.

    Args:
        layers: The user's settings, each layer over the one before; lists are axes.
        seeds: Number of seeds for each combination of settings.
        out: Folder of the study.
        resume: Whether the study exists already.
        baseline: Method that the others are tested against.
        say: Called with a line that names the methods left out, which cannot cluster such data.

    Raises:
        UsageError: A setting is not allowed, has no effect, or would change existing runs.
    """
    from ccfcpp.studies.comparison import Comparison, plan_comparison
    from ccfcpp.studies.growth import check_new_runs, reopen_study
    from ccfcpp.studies.study import Study

    for key in split_axes(ClusterConfig, layers)[1].keys() & _NO_AXES.keys():
        raise UsageError(f"{key} is no axis of a comparison: {_NO_AXES[key]}")
    if resume:
        path = required_out(out)
        study = reopen_study(path, ClusterConfig, plan_comparison, layers, seeds)
    else:
        spec = _comparison_spec([BESIDE_PUBLISHED, *layers], seeds, say)
        runs = plan_comparison(spec)
        path = out or new_path("comparison", runs[0].config.dataset)
        RunPaths(path).refuse_if_taken()
        study = Study(path, runs, spec)
    if baseline is not None:
        study.compare_with(baseline)
    Comparison(study.runs, [], baseline)
    return check_new_runs(study, layers, "cluster", _check_runs, resumed=resume)


def write_tables(study: Study[ClusterConfig]) -> Comparison:
    """Tabulate a study's finished runs, write the tables to its folder, and return them."""
    from ccfcpp.studies.comparison import Comparison

    comparison = Comparison(study.runs, study.results(), study.baseline)
    study.write_table(comparison.rows, comparison.as_markdown(), comparison.as_latex())
    return comparison


def _comparison_spec(layers: Layers, seeds: int, say: Callable[[str], None]) -> StudySpec:
    """Return a new comparison's settings and grids; default: all methods and degrees of skew p."""
    (*files, own), axes = split_axes(ClusterConfig, layers)
    values = dict(flatten(own))
    single: dict[str, Sequence[object]] = {
        key: [values.pop(key)] for key in ("method", "partition.p") if key in values
    }
    grid: dict[str, Sequence[object]] = {"method": list(METHODS), **single, **axes}
    config = resolve(ClusterConfig, "cluster", *files, unflatten(values))
    named = list(map(str, grid["method"]))
    grid["method"] = _supported_methods(config.data_kind or "images", named, say)
    if (encoder := config.data.encoder) is not None and config.data.encoder_hash is None:
        from ccfcpp.data.encoders.loading import load_encoder
        from ccfcpp.runs.environment import choose_device

        # Later runs of the study refuse another encoder.
        values["data.encoder_hash"] = load_encoder(encoder, choose_device(config.device)).hash
    kind = config.partition.kind
    if kind == "skew":
        grid = {"method": grid.pop("method"), "partition.p": ALL_SKEWS, **grid}
    elif "partition.p" in grid:
        raise UsageError(
            KeyValue("partition.p", ...),
            f" has no effect on partition.kind = {kind!r}: leave it out",
        )
    return StudySpec(files, unflatten(values), [grid], seeds)


def _supported_methods(
    kind: DataKind, methods: Sequence[str], say: Callable[[str], None]
) -> list[str]:
    """Select the methods that can cluster this kind of data; ``say`` names the others."""
    # Unknown names are kept: planning the runs refuses them, and suggests the nearest known one.
    chosen = [name for name in methods if name not in METHODS or kind in METHODS[name].takes]
    if not chosen:
        check_takes(methods[0], kind)
    if left := [name for name in methods if name not in chosen]:
        say(f"left out, since they take no {kind}: {', '.join(left)}")
    return chosen


def _check_runs(runs: Sequence[PlannedRun[ClusterConfig]]) -> None:
    """Construct the first run of each method, so that errors show before hours of work."""
    from ccfcpp.clustering.run import clustering_run
    from ccfcpp.clustering.setup import load_data

    data = load_data(runs[0].config)
    for config in {run.config.method: run.config for run in reversed(runs)}.values():
        clustering_run(config, data)
