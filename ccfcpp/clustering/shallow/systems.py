"""k-FED and both variants of FFCM, described."""

from typing import TYPE_CHECKING

from ccfcpp.clustering.kmeans.config import FOR_REPRESENTATIONS, CentroidConfig, FuzzyConfig
from ccfcpp.clustering.methods import System
from ccfcpp.clustering.shallow.config import FFCMConfig, KFedConfig, PixelsConfig
from ccfcpp.core.config import Section

if TYPE_CHECKING:
    from ccfcpp.clustering.algorithm import Problem
    from ccfcpp.clustering.methods import Made

_FUZZY: dict[str, type[Section]] = {
    "pixels": PixelsConfig,
    "fuzzy": FuzzyConfig,
    "ffcm": FFCMConfig,
}


def _k_fed(problem: "Problem") -> "Made":
    from ccfcpp.clustering.shallow.k_fed import KFed

    return KFed(problem)


def _ffcm_avg(problem: "Problem") -> "Made":
    from ccfcpp.clustering.shallow.ffcm import FFCM, support_weighted_mean

    return FFCM(problem, support_weighted_mean)


def _ffcm_km(problem: "Problem") -> "Made":
    from ccfcpp.clustering.shallow.ffcm import FFCM, clustered_centroids

    return FFCM(problem, clustered_centroids)


K_FED = System(
    title="k-FED",
    sends="centroids",
    kinds=("centroids",),
    make=_k_fed,
    sections={"pixels": PixelsConfig, "centroids": CentroidConfig, "kfed": KFedConfig},
    ignores=(*FOR_REPRESENTATIONS, "centroids.restarts", "compute", "defence.weight"),
    summary="one-shot k-means of clients that hold few clusters each",
)
FFCM_AVG = System(
    title="FFCM-avg",
    sends="centroids, supports",
    kinds=("centroids", "sums"),
    make=_ffcm_avg,
    sections=_FUZZY,
    ignores=("fuzzy.restarts", "compute"),
    rounds="ffcm.rounds",
    summary="fuzzy c-means at the clients; the server takes means",
)
FFCM_KM = System(
    title="FFCM-km",
    sends="centroids, supports",
    kinds=("centroids", "sums"),
    make=_ffcm_km,
    sections=_FUZZY,
    ignores=("fuzzy.restarts", "compute", "defence.weight"),
    rounds="ffcm.rounds",
    summary="fuzzy c-means at the clients; the server runs k-means",
)
