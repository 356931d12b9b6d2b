"""Entries of Fed-KM, Fed-FCM and Fed-EM in the table of clustering methods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccfcpp.clustering.kmeans.config import MembershipConfig
from ccfcpp.clustering.methods import System, lazy, unused_if_absent
from ccfcpp.clustering.systems.pooled.config import MeansConfig, MixtureConfig
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.core.config import Unused, require

if TYPE_CHECKING:
    from ccfcpp.clustering.config import ClusterConfig

_MEANS = "ccfcpp.clustering.systems.pooled.means"


def unused_of_means(config: ClusterConfig) -> Unused:
    """Yield the settings in section ``means`` that have no effect in this run."""
    yield from unused_if_absent("means.tolerance")(config)
    if config.privacy.level != "none":
        yield "means.starts", [require("privacy.level", "none")]


FED_KM = System(
    title="Fed-KM",
    sends="sums and counts by cluster",
    kinds=("pixels", "sums"),
    make=lazy(_MEANS, "ExactMeans", "hard_weights"),
    sections={"pixels": PixelsConfig, "means": MeansConfig},
    ignores=("pixels.assignment",),
    unused=unused_of_means,
    rounds="means.rounds",
    counts=lambda config: True,
    takes=("images", "vectors"),
    summary="k-means whose steps are those of all samples in one place",
)
FED_FCM = replace(
    FED_KM,
    title="Fed-FCM",
    make=lazy(_MEANS, "ExactFuzzyMeans", "fuzzy_weights"),
    sections={"pixels": PixelsConfig, "means": MeansConfig, "fuzzy": MembershipConfig},
    soft=True,
    summary="fuzzy c-means whose steps are those of all samples in one place",
)
FED_EM = replace(
    FED_KM,
    title="Fed-EM",
    sends="sums, counts and scatters by cluster",
    make=lazy("ccfcpp.clustering.systems.pooled.mixture", "GaussianMixtures"),
    sections={"pixels": PixelsConfig, "mixture": MixtureConfig},
    unused=unused_if_absent("mixture.tolerance"),
    rounds="mixture.rounds",
    soft=True,
    summary="a mixture of Gaussian distributions by expectation maximisation over all clients",
)
