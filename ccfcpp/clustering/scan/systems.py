"""Fed-SCAN, described."""

from ccfcpp.clustering.methods import System, late
from ccfcpp.clustering.scan.config import (
    AffineViewsConfig,
    IntensityViewsConfig,
    ScanConfig,
    VectorViewsConfig,
)
from ccfcpp.core.conditions import On
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
    sections={**SECTIONS, "vector_views": VectorViewsConfig},
    counts=lambda config: True,
    needs={
        "affine": (On("images"),),
        "intensity": (On("images"),),
        "vector_views": (On("vectors"),),
    },
    ignores=("compute",),
    rounds="scan.steps",
    round_steps="scan.steps_per_round",
    takes=("images", "vectors"),
    soft=True,
    summary="neighbours inside each client, synchronised steps",
)
