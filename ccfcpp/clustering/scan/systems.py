"""Fed-SCAN, described."""

from typing import TYPE_CHECKING, Any

from ccfcpp.clustering.methods import System
from ccfcpp.clustering.scan.config import AffineViewsConfig, ScanConfig

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import ClusteringAlgorithm, Problem


def _make(problem: "Problem") -> "ClusteringAlgorithm[Any]":
    from ccfcpp.clustering.scan.algorithm import FedScan

    return FedScan(problem)


FED_SCAN = System(
    title="Fed-SCAN",
    sends="sums of statistics and gradients",
    make=_make,
    sections={"scan": ScanConfig, "affine": AffineViewsConfig},
    summary="neighbours inside each client, synchronised steps",
)
