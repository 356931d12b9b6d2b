"""Runs of federated classification, behind ``ccfcpp classify`` and ``run``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccfcpp.runs.pipeline import Pipeline
from supervised.config import ClassifyConfig

if TYPE_CHECKING:
    from ccfcpp.data.images import ImageData
    from supervised.classification import ClassificationRun


def _run(config: ClassifyConfig, data: ImageData | None) -> ClassificationRun:
    from supervised.classification import classification_run

    return classification_run(config, data)


def _label(config: ClassifyConfig) -> str:
    kind = config.decorrelation.kind
    return config.method if kind == "none" else f"{config.method}-{kind}"


CLASSIFICATION = Pipeline("classify", ClassifyConfig, _run, _label)
run = CLASSIFICATION.run
"""The function ``supervised.run``."""
