"""What ``ccfcpp cluster`` does, from Python."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.clustering.experiment import ClusteringExperiment
from ccfcpp.clustering.methods import refuse_unused
from ccfcpp.clustering.own_images import fitted
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, merge, nest, resolve
from ccfcpp.runs.opening import Opening, new_path, required_out


def run(
    settings: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Run a system of federated clustering on a data set, and write the folder of the run.

    Args:
        settings: Values over the data set's preset, nested or by dotted key, such as
            ``{"dataset": "mnist", "method": "ccfc", "partition.p": 0.75}``.
        out: Folder of the run; a new one under ``runs/`` where it is None.
        resume: Whether to go on with the run in ``out``.

    Returns:
        The summary, as it stands in ``summary.json``.

    Raises:
        UsageError: A key is unknown, a value does not fit, or the folder is taken.
    """
    tree: Tree = {}
    for key, value in (settings or {}).items():
        tree = merge(tree, nest(key, value))
    if resume:
        place = required_out(None if out is None else Path(out))
        opening = Opening.going_on(place, ClusterConfig, tree)
    else:
        config = resolve(ClusterConfig, "cluster", tree)
        refuse_unused([key for key, _ in flatten(tree)], [config.method])
        path = new_path(config.method, config.dataset) if out is None else Path(out)
        opening = Opening.new(path, config)
    opening, data = fitted(opening, tree)
    experiment, folder = opening.open(lambda config: ClusteringExperiment(config, data))
    return experiment.run(folder)
