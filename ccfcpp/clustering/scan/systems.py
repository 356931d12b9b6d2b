"""Fed-SCAN, described."""

from ccfcpp.clustering.methods import System, late
from ccfcpp.clustering.scan.config import AffineViewsConfig, IntensityViewsConfig, ScanConfig
from ccfcpp.core.config import Section

SECTIONS: dict[str, type[Section]] = {
    "scan": ScanConfig,
    "affine": AffineViewsConfig,
    "intensity": IntensityViewsConfig,
}


FED_SCAN = System(
    title="Fed-SCAN",
    sends="sums of statistics and gradients",
    kinds=("sums",),
    make=late("ccfcpp.clustering.scan.algorithm", "FedScan"),
    sections=SECTIONS,
    counts=lambda config: True,
    ignores=("compute",),
    rounds="scan.steps",
    round_steps="scan.steps_per_round",
    summary="neighbours inside each client, synchronised steps",
)
