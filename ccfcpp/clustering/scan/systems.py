"""Fed-SCAN, described."""

from typing import TYPE_CHECKING, Any

from ccfcpp.clustering.methods import System
from ccfcpp.clustering.scan.config import AffineViewsConfig, IntensityViewsConfig, ScanConfig
from ccfcpp.core.config import Section

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem

SECTIONS: dict[str, type[Section]] = {
    "scan": ScanConfig,
    "affine": AffineViewsConfig,
    "intensity": IntensityViewsConfig,
}


def _make(problem: "Problem") -> "ClusteringAlgorithm[Any]":
    from ccfcpp.clustering.scan.algorithm import FedScan

    return FedScan(problem)


FED_SCAN = System(
    title="Fed-SCAN",
    sends="sums of statistics and gradients",
    kinds=("sums",),
    make=_make,
    sections=SECTIONS,
    rounds="scan.steps",
    round_steps="scan.steps_per_round",
    summary="neighbours inside each client, synchronised steps",
)
