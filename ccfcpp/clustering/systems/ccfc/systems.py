"""Entries of CCFC and CCFC++ in the table of clustering methods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.methods import System, lazy
from ccfcpp.clustering.systems.ccfc.config import LossConfig, ModelConfig, TrainingConfig
from ccfcpp.clustering.systems.fed_scan.systems import SECTIONS as SCAN_SECTIONS
from ccfcpp.clustering.systems.fed_scan.systems import unused_of_scan
from ccfcpp.core.config import (
    ComputeConfig,
    RunConfig,
    Section,
    Unused,
    ViewsConfig,
    require,
    require_other,
    unused_without,
)
from ccfcpp.core.errors import KeyValue, UsageError

if TYPE_CHECKING:
    from ccfcpp.clustering.config import ClusterConfig

_SECTIONS: dict[str, type[Section]] = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "loss": LossConfig,
    "centroids": CentroidConfig,
    "views": ViewsConfig,
    "compute": ComputeConfig,
    **SCAN_SECTIONS,
}
_MAKE = lazy("ccfcpp.clustering.systems.ccfc.algorithm", "CCFC")


def _unused(config: ClusterConfig) -> Unused:
    """Yield the settings that have no effect in this run."""
    training, centroids = config.section(TrainingConfig), config.section(CentroidConfig)
    if training.steps == "synchronised":
        keys = "model.initialization training.batch_size training.keep_optimizer loss.lam "
        keys += "compute.cohort centroids.encoder centroids.first_encoder"
        yield from unused_without(keys, require("training.steps", "local"))
    else:
        keys = "training.synchronised_batch training.gradients training.predictor_steps"
        yield from unused_without(keys, require("training.steps", "synchronised"))
    siamese = "model.initialization loss.pretrain_eta views centroids.first_encoder"
    if training.pretraining == "neighbours":
        keys = f"{siamese} training.pretrain_rounds centroids.starts"
        yield from unused_without(keys, require("training.pretraining", "siamese"))
    else:
        yield from unused_without(
            "scan affine intensity", require("training.pretraining", "neighbours")
        )
    if training.pretrain_rounds == 0:
        yield from unused_without(siamese, *require_other("training.pretrain_rounds", 0))
    if training.rounds == 0:
        keys = "training.predictor_steps training.schedule loss.eta loss.min_cluster_size"
        yield from unused_without(keys, *require_other("training.rounds", 0))
    if config.privacy.level == "image":
        yield from unused_without("training.gradients", require("privacy.level", "none or client"))
    if config.section(ModelConfig).backbone != "scan":
        yield from unused_without(
            "scan.stem scan.widths scan.hidden", require("model.backbone", "scan")
        )
    if centroids.search == "lloyd":
        keys = "encoder first_encoder restarts"
        if training.pretraining == "neighbours":
            keys += " server_weights iterations"
        for key in keys.split():
            yield from unused_without(f"centroids.{key}", require("centroids.search", "k-means"))
    else:
        yield from unused_without(
            "scan.overclustering scan.merge", require("centroids.search", "lloyd")
        )
    if centroids.assignment == "euclidean":
        yield from unused_without("centroids.starts", require("centroids.assignment", "cosine"))
    local = (training.steps, centroids.search) == ("local", "k-means")
    by_global = "global" in (centroids.encoder, centroids.first_encoder)
    if local and training.pretrain_rounds > 0 and not by_global:
        yield from unused_without("centroids.starts", require("centroids.encoder", "global"))
    if centroids.encoder == "global":
        yield from unused_without("centroids.first_encoder", require("centroids.encoder", "local"))
    yield from unused_of_scan(config)


def _check(config: RunConfig) -> None:
    """Raise a ``UsageError`` if settings contradict each other."""
    centroids, training = config.section(CentroidConfig), config.section(TrainingConfig)
    backbone = config.section(ModelConfig).backbone
    pretraining = KeyValue("training.pretraining", training.pretraining)
    lloyd = KeyValue("centroids.search", "lloyd")
    if backbone == "scan" and training.pretraining != "neighbours":
        raise UsageError(
            KeyValue("model.backbone", "scan"),
            " is for pre-training by neighbours, and ",
            pretraining,
            ": set training.pretraining=neighbours or another backbone",
        )
    if (centroids.search, training.pretraining, centroids.starts) == ("lloyd", "siamese", 1):
        raise UsageError(
            lloyd,
            " has no first centroids with ",
            pretraining,
            " and ",
            KeyValue("centroids.starts", 1),
            ": set training.pretraining=neighbours, or centroids.starts=100",
        )
    if centroids.search == "lloyd" and centroids.refine_steps == 0:
        raise UsageError(
            lloyd,
            " with ",
            KeyValue("centroids.refine_steps", 0),
            " never moves a centroid: give 1 at least",
        )


def _can_choose_k(config: RunConfig) -> bool:
    """Return whether k may be unknown: if Fed-SCAN's over-clusters are merged into centroids."""
    by_neighbours = config.section(TrainingConfig).pretraining == "neighbours"
    return by_neighbours and config.section(CentroidConfig).search == "lloyd"


def _check_ccfc(config: RunConfig) -> None:
    """Raise a ``UsageError`` if settings contradict each other, or η is not 0."""
    _check(config)
    loss = config.section(LossConfig)
    if loss.eta > 0 or loss.pretrain_eta > 0:
        raise UsageError(
            "method = 'ccfc' is CCFC++ with eta = 0, but ",
            KeyValue("loss.eta", loss.eta),
            " and ",
            KeyValue("loss.pretrain_eta", loss.pretrain_eta),
            ": set both to 0 or take 'ccfc++'",
        )


CCFC = System(
    title="CCFC",
    sends="model, centroids",
    kinds=("models", "centroids", "sums"),
    make=_MAKE,
    sections=_SECTIONS,
    counts=_can_choose_k,
    ignores=("scan.encoder", "scan.latent", "scan.normalisation", "loss.scale"),
    unused=_unused,
    fixed={"loss": {"eta": 0.0, "pretrain_eta": 0.0}},
    check=_check_ccfc,
    rounds="training.rounds",
    summary="cluster-contrastive training from global centroids",
)
CCFC_PLUS_PLUS = replace(
    CCFC,
    title="CCFC++",
    fixed={},
    ignores=("scan.encoder", "scan.latent", "scan.normalisation"),
    check=_check,
    summary="CCFC with decorrelated representations",
)
