"""k-means, fuzzy c-means and Gaussian mixtures by sums, described."""

from dataclasses import replace

from ccfcpp.clustering.exact.config import MeansConfig, MixtureConfig
from ccfcpp.clustering.kmeans.config import FuzzyConfig
from ccfcpp.clustering.methods import System, late
from ccfcpp.clustering.shallow.config import PixelsConfig

_MEANS = "ccfcpp.clustering.exact.means"

FED_KM = System(
    title="Fed-KM",
    sends="sums and counts by cluster",
    kinds=("pixels", "sums"),
    make=late(_MEANS, "ExactMeans", "hard"),
    sections={"pixels": PixelsConfig, "means": MeansConfig},
    ignores=("pixels.assignment", "compute"),
    rounds="means.rounds",
    counts=lambda config: True,
    takes=("images", "vectors"),
    summary="k-means whose steps are those of all samples in one place",
)
FED_FCM = replace(
    FED_KM,
    title="Fed-FCM",
    make=late(_MEANS, "ExactFuzzyMeans", "fuzzy"),
    sections={"pixels": PixelsConfig, "means": MeansConfig, "fuzzy": FuzzyConfig},
    ignores=(*FED_KM.ignores, "fuzzy.tolerance", "fuzzy.iterations", "fuzzy.restarts"),
    soft=True,
    summary="fuzzy c-means whose steps are those of all samples in one place",
)
FED_EM = replace(
    FED_KM,
    title="Fed-EM",
    sends="sums, counts and scatters by cluster",
    make=late("ccfcpp.clustering.exact.mixture", "GaussianMixtures"),
    sections={"pixels": PixelsConfig, "mixture": MixtureConfig},
    rounds="mixture.rounds",
    soft=True,
    summary="a mixture of Gaussian distributions by expectation maximisation over all clients",
)
