"""Fed-SCAN, described."""

from typing import TYPE_CHECKING

from ccfcpp.clustering.methods import System
from ccfcpp.clustering.scan.config import AffineViewsConfig, IntensityViewsConfig, ScanConfig
from ccfcpp.core.config import Section

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import Problem
    from ccfcpp.clustering.methods import Made

SECTIONS: dict[str, type[Section]] = {
    "scan": ScanConfig,
    "affine": AffineViewsConfig,
    "intensity": IntensityViewsConfig,
}


def _make(problem: "Problem") -> "Made":
    from ccfcpp.clustering.scan.algorithm import FedScan

    return FedScan(problem)


FED_SCAN = System(
    title="Fed-SCAN",
    sends="sums of statistics and gradients",
    kinds=("sums",),
    make=_make,
    sections=SECTIONS,
    ignores=("compute",),
    rounds="scan.steps",
    round_steps="scan.steps_per_round",
    summary="neighbours inside each client, synchronised steps",
)
