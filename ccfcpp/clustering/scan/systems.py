"""Fed-SCAN, described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ccfcpp.clustering.methods import System, late, without_tf32
from ccfcpp.clustering.scan.config import ScanConfig, VectorViewsConfig
from ccfcpp.core.conditions import On
from ccfcpp.core.config import AffineViewsConfig, IntensityViewsConfig, Section, Tree
from ccfcpp.core.permissions import Kind

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import Problem
    from ccfcpp.clustering.methods import Made

SECTIONS: dict[str, type[Section]] = {
    "scan": ScanConfig,
    "affine": AffineViewsConfig,
    "intensity": IntensityViewsConfig,
}


def _also(settings: Tree) -> tuple[Kind, ...]:
    """Return what newcomers of a run that goes on from a finished one send: centres."""
    data = settings.get("data")
    grows = isinstance(data, Mapping) and bool(data.get("newcomers"))
    return ("centroids",) if grows else ()


def _make(problem: Problem) -> Made:
    plain = late("ccfcpp.clustering.scan.algorithm", "FedScan")
    grows = late("ccfcpp.clustering.scan.newcomers", "GrowingScan")
    return (grows if problem.grows else plain)(problem)


FED_SCAN = System(
    title="Fed-SCAN",
    sends="sums of statistics and gradients",
    kinds=("sums",),
    more_kinds=_also,
    make=_make,
    sections={**SECTIONS, "vector_views": VectorViewsConfig},
    counts=lambda config: True,
    needs={
        "affine": (On("images"),),
        "intensity": (On("images"),),
        "vector_views": (On("vectors"),),
    },
    check=without_tf32,
    ignores=("compute.cohort",),
    rounds="scan.steps",
    round_steps="scan.steps_per_round",
    takes=("images", "vectors"),
    soft=True,
    summary="neighbours inside each client, synchronised steps",
)
