"""Entries of the systems whose clients send images in the table of clustering methods."""

from dataclasses import replace

from ccfcpp.clustering.kmeans.config import FuzzyConfig, KMeansConfig
from ccfcpp.clustering.methods import System, lazy
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.clustering.systems.synthetic.config import DCNConfig, GANConfig
from ccfcpp.core.config import ComputeConfig, Section, Tree

_POOLED = "ccfcpp.clustering.systems.synthetic.pooled"
_K_MEANS: dict[str, type[Section]] = {"pixels": PixelsConfig, "centroids": KMeansConfig}
_FUZZY: dict[str, type[Section]] = {"pixels": PixelsConfig, "fuzzy": FuzzyConfig}
_IGNORES = ("privacy.smallest_count",)
_GAN: dict[str, type[Section]] = {"gan": GANConfig, "compute": ComputeConfig}
# SDA-FC's clients assign images by cosine similarity.
_DIRECTIONS: Tree = {"pixels": {"assignment": "cosine"}}

KM = System(
    title="KM",
    sends="images",
    kinds=("images",),
    make=lazy(_POOLED, "PooledClustering", "PixelKMeans"),
    sections=_K_MEANS,
    ignores=_IGNORES,
    centralised=True,
    takes=("images", "vectors"),
    summary="k-means of all clients' images in one place",
)
FCM = replace(
    KM,
    title="FCM",
    make=lazy(_POOLED, "PooledClustering", "PixelFuzzyCMeans"),
    sections=_FUZZY,
    summary="fuzzy c-means of all clients' images in one place",
)
SDA_FC_KM = System(
    title="SDA-FC-KM",
    sends="synthetic images",
    kinds=("synthetic",),
    make=lazy(_POOLED, "SyntheticClustering", "PixelKMeans"),
    sections=_K_MEANS | _GAN,
    ignores=_IGNORES,
    fixed=_DIRECTIONS,
    rounds="gan.epochs",
    summary="k-means of images that the clients' GANs make",
)
SDA_FC_FCM = replace(
    SDA_FC_KM,
    title="SDA-FC-FCM",
    make=lazy(_POOLED, "SyntheticClustering", "PixelFuzzyCMeans"),
    sections=_FUZZY | _GAN,
    summary="fuzzy c-means of images that the clients' GANs make",
)
PPFC_GAN = System(
    title="PPFC-GAN",
    sends="synthetic images",
    kinds=("synthetic",),
    make=lazy(_POOLED, "SyntheticClustering", "LatentKMeans"),
    sections={**_GAN, "dcn": DCNConfig, "centroids": KMeansConfig},
    ignores=_IGNORES,
    rounds="gan.epochs",
    summary="a deep clustering network of images that the clients' GANs make",
)
