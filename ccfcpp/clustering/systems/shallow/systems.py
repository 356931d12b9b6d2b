"""Entries of k-FED, FFCM and FedDP-KMeans in the table of clustering methods."""

from dataclasses import replace

from ccfcpp.clustering.kmeans.config import LloydConfig, LocalFuzzyConfig
from ccfcpp.clustering.methods import System, lazy, unused_if_absent
from ccfcpp.clustering.systems.shallow.config import (
    FedDPConfig,
    FFCMConfig,
    KFedConfig,
    PixelsConfig,
)

_FFCM = "ccfcpp.clustering.systems.shallow.ffcm"

K_FED = System(
    title="k-FED",
    sends="centroids",
    kinds=("pixels",),
    make=lazy("ccfcpp.clustering.systems.shallow.k_fed", "KFed"),
    sections={"pixels": PixelsConfig, "centroids": LloydConfig, "kfed": KFedConfig},
    ignores=("defence.weight",),
    takes=("images", "vectors"),
    summary="one-shot k-means of clients that hold few clusters each",
)
FFCM_AVG = System(
    title="FFCM-avg",
    sends="centroids, supports",
    kinds=("pixels", "sums"),
    make=lazy(_FFCM, "FFCM", "support_weighted_mean"),
    sections={"pixels": PixelsConfig, "fuzzy": LocalFuzzyConfig, "ffcm": FFCMConfig},
    unused=unused_if_absent("ffcm.tolerance"),
    rounds="ffcm.rounds",
    takes=("images", "vectors"),
    summary="fuzzy c-means at the clients; the server takes means",
)
FFCM_KM = replace(
    FFCM_AVG,
    title="FFCM-km",
    make=lazy(_FFCM, "FFCM", "clustered_centroids"),
    ignores=("defence.weight",),
    summary="fuzzy c-means at the clients; the server runs k-means",
)
FEDDP_KMEANS = System(
    title="FedDP-KMeans",
    sends="sums of images, of their outer products, and by cluster",
    kinds=("pixels", "sums"),
    make=lazy("ccfcpp.clustering.systems.shallow.feddp_kmeans", "FedDPKMeans"),
    sections={"pixels": PixelsConfig, "feddp": FedDPConfig},
    rounds="feddp.rounds",
    summary="k-means by few sums in a small subspace, made for differential privacy",
)
