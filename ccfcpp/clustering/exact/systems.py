"""k-means, fuzzy c-means and Gaussian mixtures by sums, described."""

from ccfcpp.clustering.exact.config import MeansConfig, MixtureConfig
from ccfcpp.clustering.kmeans.config import FuzzyConfig
from ccfcpp.clustering.methods import System, late
from ccfcpp.clustering.shallow.config import PixelsConfig
from ccfcpp.core.kinds import DataKind

_MEANS = "ccfcpp.clustering.exact.means"
_BOTH: tuple[DataKind, ...] = ("images", "vectors")
_IGNORES = ("pixels.assignment", "compute")

FED_KM = System(
    title="Fed-KM",
    sends="sums and counts by cluster",
    kinds=("pixels", "sums"),
    make=late(_MEANS, "ExactMeans", "hard"),
    sections={"pixels": PixelsConfig, "means": MeansConfig},
    ignores=_IGNORES,
    rounds="means.rounds",
    takes=_BOTH,
    summary="k-means whose steps are those of all samples in one place",
)
FED_FCM = System(
    title="Fed-FCM",
    sends="sums and counts by cluster",
    kinds=("pixels", "sums"),
    make=late(_MEANS, "ExactFuzzyMeans", "fuzzy"),
    sections={"pixels": PixelsConfig, "means": MeansConfig, "fuzzy": FuzzyConfig},
    ignores=(*_IGNORES, "fuzzy.tolerance", "fuzzy.iterations", "fuzzy.restarts"),
    rounds="means.rounds",
    takes=_BOTH,
    soft=True,
    summary="fuzzy c-means whose steps are those of all samples in one place",
)
FED_EM = System(
    title="Fed-EM",
    sends="sums, counts and scatters by cluster",
    kinds=("pixels", "sums"),
    make=late("ccfcpp.clustering.exact.mixture", "GaussianMixtures"),
    sections={"pixels": PixelsConfig, "mixture": MixtureConfig},
    ignores=_IGNORES,
    rounds="mixture.rounds",
    takes=_BOTH,
    soft=True,
    summary="a mixture of Gaussian distributions by expectation maximisation over all clients",
)
