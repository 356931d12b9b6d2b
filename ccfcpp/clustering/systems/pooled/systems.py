"""Entries of Fed-KM, Fed-FCM and Fed-EM in the table of clustering methods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccfcpp.clustering.kmeans.config import MembershipConfig
from ccfcpp.clustering.methods import System, lazy, unused_if_absent
from ccfcpp.clustering.systems.pooled.config import MeansConfig, MixtureConfig, PrototypesConfig
from ccfcpp.clustering.systems.shallow.config import PixelsConfig
from ccfcpp.core.config import RunConfig, Unused, VectorsConfig, fits_always, require
from ccfcpp.core.errors import KeyValue, UsageError

if TYPE_CHECKING:
    from ccfcpp.clustering.config import ClusterConfig

_MEANS = "ccfcpp.clustering.systems.pooled.means"


def unused_of_means(config: ClusterConfig) -> Unused:
    """Yield the settings in section ``means`` that have no effect in this run."""
    yield from unused_if_absent("means.tolerance")(config)
    if config.privacy.level != "none":
        yield "means.starts", [require("privacy.level", "none")]


def _check_modes(config: RunConfig) -> None:
    """Raise a ``UsageError`` if centroids cannot have modes, since categories are not 0 or 1."""
    if not config.section(PrototypesConfig).modes:
        return
    vectors = config.section(VectorsConfig)
    if vectors.category_weight is None or not vectors.categories:
        raise UsageError(
            KeyValue("means.modes", True),
            " needs columns of categories with a weight: give --categories and ",
            KeyValue("vectors.category_weight", 0.5, advised=True),
        )
    if vectors.scale == "unit" or vectors.components is not None:
        raise UsageError(
            KeyValue("means.modes", True),
            " needs categories as they are: leave out vectors.components and ",
            KeyValue("vectors.scale", "unit"),
        )


FED_KM = System(
    title="Fed-KM",
    sends="sums and counts by cluster",
    kinds=("pixels", "sums"),
    make=lazy(_MEANS, "ExactMeans"),
    sections={"pixels": PixelsConfig, "means": PrototypesConfig},
    ignores=("pixels.assignment",),
    unused=unused_of_means,
    check=_check_modes,
    rounds="means.rounds",
    counts=lambda config: True,
    takes=("images", "vectors"),
    summary="k-means whose steps are those of all samples in one place",
)
FED_FCM = replace(
    FED_KM,
    title="Fed-FCM",
    check=fits_always,
    make=lazy(_MEANS, "ExactFuzzyMeans"),
    sections={"pixels": PixelsConfig, "means": MeansConfig, "fuzzy": MembershipConfig},
    soft=True,
    summary="fuzzy c-means whose steps are those of all samples in one place",
)
FED_EM = replace(
    FED_KM,
    title="Fed-EM",
    check=fits_always,
    sends="sums, counts and scatters by cluster",
    make=lazy("ccfcpp.clustering.systems.pooled.mixture", "GaussianMixtures"),
    sections={"pixels": PixelsConfig, "mixture": MixtureConfig},
    unused=unused_if_absent("mixture.tolerance"),
    rounds="mixture.rounds",
    soft=True,
    summary="a mixture of Gaussian distributions by expectation maximisation over all clients",
)
