"""Fed-SCAN, described."""

from collections.abc import Mapping

from ccfcpp.clustering.methods import System, late
from ccfcpp.clustering.scan.config import (
    AffineViewsConfig,
    IntensityViewsConfig,
    ScanConfig,
    VectorViewsConfig,
)
from ccfcpp.core.conditions import On
from ccfcpp.core.config import Section, Tree
from ccfcpp.core.sending import Kind

SECTIONS: dict[str, type[Section]] = {
    "scan": ScanConfig,
    "affine": AffineViewsConfig,
    "intensity": IntensityViewsConfig,
}


def of_patches(settings: Tree) -> tuple[Kind, ...]:
    """The transform's atoms are means of whitened patches."""
    scan = settings.get("scan")
    by_patches = isinstance(scan, Mapping) and scan.get("first_neighbours") == "transform"
    return ("pixels",) if by_patches else ()


FED_SCAN = System(
    title="Fed-SCAN",
    sends="sums of statistics and gradients",
    kinds=("sums",),
    more_kinds=of_patches,
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
