"""Runs of federated classification: what stands behind ``ccfcpp classify`` and ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ccfcpp.runs.pipeline import Pipeline
from supervised.config import ClassifyConfig

if TYPE_CHECKING:
    from ccfcpp.data import ImageData
    from ccfcpp.runs.paths import Summary
    from supervised.experiment import ClassificationExperiment


def run(
    settings: Mapping[str, object] | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
) -> Summary:
    """Train a classifier over clients, and write the folder of the run.

    Args:
        settings: Values over the data set's preset, nested or by dotted key, such as
            ``{"dataset": "cifar10", "method": "moon", "partition.alpha": 0.05}``.
        out: Folder of the run; a new one under ``runs/`` where it is None.
        resume: Whether to go on with the run in ``out``.

    Returns:
        The summary, as it stands in ``summary.json``.

    Raises:
        UsageError: A key is unknown, a value does not fit, or the folder is taken.
    """
    return CLASSIFICATION.run(settings, out, resume)


def _experiment(config: ClassifyConfig, data: ImageData | None = None) -> ClassificationExperiment:
    from supervised.experiment import ClassificationExperiment

    return ClassificationExperiment(config, data)


def _label(config: ClassifyConfig) -> str:
    kind = config.decorrelation.kind
    return config.method if kind == "none" else f"{config.method}-{kind}"


CLASSIFICATION = Pipeline(
    "classify", ClassifyConfig, _experiment, _label, lambda config: ("training.rounds", "")
)
