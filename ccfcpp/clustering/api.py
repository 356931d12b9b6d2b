"""The functions behind ``ccfcpp cluster`` and ``ccfcpp.run``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccfcpp.clustering.auto_settings import settings_for, settings_over_a_network
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.core.config_layers import merge
from ccfcpp.core.presets import preset_file
from ccfcpp.runs.pipeline import Pipeline

if TYPE_CHECKING:
    from ccfcpp.clustering.run import ClusteringRun
    from ccfcpp.core.config import Tree
    from ccfcpp.data.open import AnyData


def _run(config: ClusterConfig, data: AnyData | None = None) -> ClusteringRun:
    from ccfcpp.clustering.run import clustering_run

    return clustering_run(config, data)


def has_preset(config: ClusterConfig) -> bool:
    """Return whether the library has preset settings for a data set; if not, the data decide."""
    is_name = "/" not in config.dataset and config.data.encoder is None
    return is_name and preset_file(f"cluster/{config.dataset}").is_file()


def _choose_settings(config: ClusterConfig) -> tuple[AnyData, Tree] | None:
    """Load the data, and choose settings by their number and shape; None if there is a preset."""
    if has_preset(config):
        return None
    from ccfcpp.clustering.setup import load_data
    from ccfcpp.data.vectors import VectorData

    data = load_data(config)
    settings = settings_for(len(data), data.values.shape[1:], config.method)
    if isinstance(data, VectorData) and data.encoder:
        settings = merge(settings, {"data": {"encoder_hash": data.encoder}})
    if data.unit == "vector" and data.owners is not None:
        # Files, or a column, say which client holds a row.
        settings = merge(settings, {"partition": {"kind": "folders"}})
    return data, settings


def _possible_settings(config: ClusterConfig) -> list[Tree]:
    """Return what ``_choose_settings`` may choose, for several sizes of data; [] with a preset."""
    if has_preset(config):
        return []
    if config.data_kind == "vectors":
        by_client: Tree = {"partition": {"kind": "folders"}}
        settings = [settings_for(count, (64,), config.method) for count in (100, 10_000)]
        return [*settings, *(merge(each, by_client) for each in settings)]
    sizes = [(count, (channels, 64, 64)) for count in (100, 10_000, 100_000) for channels in (1, 3)]
    return [fit(*size) for size in sizes for fit in (settings_for, settings_over_a_network)]


CLUSTERING = Pipeline(
    "cluster",
    ClusterConfig,
    _run,
    lambda config: config.method,
    _choose_settings,
    _possible_settings,
)
run = CLUSTERING.run
"""Run federated clustering by some settings: the function ``ccfcpp.run``."""
