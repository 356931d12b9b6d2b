"""Entry of Fed-SCAN in the table of clustering methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ccfcpp.clustering.methods import System, lazy, without_tf32
from ccfcpp.clustering.systems.fed_scan.config import ScanConfig, VectorViewsConfig
from ccfcpp.core.config import (
    AffineViewsConfig,
    IntensityViewsConfig,
    PrecisionConfig,
    Section,
    Tree,
    Unused,
    require,
    require_other,
    unused_without,
)
from ccfcpp.core.permissions import Kind

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import Problem
    from ccfcpp.clustering.config import ClusterConfig
    from ccfcpp.clustering.methods import AnyAlgorithm

SECTIONS: dict[str, type[Section]] = {
    "scan": ScanConfig,
    "affine": AffineViewsConfig,
    "intensity": IntensityViewsConfig,
}


def unused_of_scan(config: ClusterConfig) -> Unused:
    """Yield the settings in section ``scan`` that have no effect in this run."""
    scan = config.section(ScanConfig)
    more, counts = require_other("scan.overclustering", 1), require("clusters", "auto")
    if isinstance(config.clusters, str):
        yield from unused_without(
            "scan.overclustering scan.merged_from", *require_other("clusters", "auto")
        )
    elif scan.overclustering == 1:
        yield from unused_without("scan.merge", *more, ", or ", counts)
        if scan.pairs == "views":
            keys = "scan.first_neighbours scan.first_weight scan.neighbours scan.mine_every"
            yield from unused_without(
                keys, require("scan.pairs", "neighbours"), ", or ", *more, ", or ", counts
            )
    if scan.overclustering == 1:
        yield from unused_without("scan.merged_from", *more)
    if config.privacy.level == "image":
        yield from unused_without("scan.precision", require("privacy.level", "none or client"))


def _unused(config: ClusterConfig) -> Unused:
    """Yield the settings that have no effect in this run."""
    yield from unused_of_scan(config)
    if config.data_kind == "images":
        yield from unused_without("vector_views scan.encoder", "a dataset of vectors")
    if config.data_kind == "vectors":
        yield from unused_without("affine intensity scan.stem scan.widths", "a dataset of images")
        if config.section(ScanConfig).encoder == "linear":
            other = require_other("scan.encoder", "linear")
            yield from unused_without("scan.hidden", "a dataset of images, or ", *other)


def _more_kinds(settings: Tree) -> tuple[Kind, ...]:
    """Return what clients send besides sums: centres, if new clients join a finished run."""
    data = settings.get("data")
    grows = isinstance(data, Mapping) and bool(data.get("newcomers"))
    return ("centroids",) if grows else ()


def _make(problem: Problem) -> AnyAlgorithm:
    """Build the algorithm: ``GrowingScan`` if the run adds clusters to a finished one."""
    plain = lazy("ccfcpp.clustering.systems.fed_scan.algorithm", "FedScan")
    grows = lazy("ccfcpp.clustering.systems.fed_scan.newcomers", "GrowingScan")
    return (grows if problem.grows else plain)(problem)


FED_SCAN = System(
    title="Fed-SCAN",
    sends="sums of statistics and gradients",
    kinds=("sums",),
    more_kinds=_more_kinds,
    make=_make,
    sections={**SECTIONS, "vector_views": VectorViewsConfig, "compute": PrecisionConfig},
    counts=lambda config: True,
    unused=_unused,
    check=without_tf32,
    rounds="scan.steps",
    round_steps="scan.steps_per_round",
    takes=("images", "vectors"),
    soft=True,
    summary="neighbours inside each client, synchronised steps",
)
