"""CCFC and CCFC++, described."""

from dataclasses import replace

from ccfcpp.clustering.ccfc.config import LossConfig, ModelConfig, TrainingConfig
from ccfcpp.clustering.kmeans.config import CentroidConfig
from ccfcpp.clustering.methods import System, late
from ccfcpp.clustering.scan.systems import SECTIONS as SCAN_SECTIONS
from ccfcpp.core.conditions import Unless, When
from ccfcpp.core.config import MethodConfig, Section, ViewsConfig

_SECTIONS: dict[str, type[Section]] = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "loss": LossConfig,
    "centroids": CentroidConfig,
    "views": ViewsConfig,
    **SCAN_SECTIONS,
}
_LOCAL = When("training.steps", "local")
_NEIGHBOURS = When("training.pretraining", "neighbours")
_SIAMESE = When("training.pretraining", "siamese")
_PRETRAINED = Unless("training.pretrain_rounds", 0)
_POINTS = When("centroids.search", "k-means")
_SUMS = When("centroids.search", "lloyd")
_OF_SCAN = When("model.backbone", "scan")
_NEEDS = {
    **dict.fromkeys(SCAN_SECTIONS, (_NEIGHBOURS,)),
    "views": (_SIAMESE, _PRETRAINED),
    **dict.fromkeys(("scan.stem", "scan.widths", "scan.hidden"), (_NEIGHBOURS, _OF_SCAN)),
    **dict.fromkeys(("scan.overclustering", "scan.merge"), (_NEIGHBOURS, _SUMS)),
    "compute.cohort": (_LOCAL,),
    "centroids.encoder": (_LOCAL,),
    "centroids.restarts": (_POINTS,),
    "centroids.iterations": (_POINTS,),
    "centroids.first_encoder": (_LOCAL, _SIAMESE, _PRETRAINED),
}
_MAKE = late("ccfcpp.clustering.ccfc.algorithm", "CCFC")
_IGNORES = ("scan.latent", "scan.normalisation")


def _fits(config: MethodConfig) -> None:
    centroids, training = config.section(CentroidConfig), config.section(TrainingConfig)
    if config.section(ModelConfig).backbone == "scan" and training.pretraining != "neighbours":
        raise ValueError(
            "model.backbone = scan is for pre-training by neighbours, and training.pretraining = "
            f"{training.pretraining}: set training.pretraining=neighbours or another backbone"
        )
    if centroids.search == "lloyd" and training.pretraining != "neighbours":
        raise ValueError(
            f"centroids.search = lloyd has no first centroids with training.pretraining = "
            f"{training.pretraining}: set training.pretraining=neighbours"
        )
    if centroids.search == "lloyd" and centroids.refine_steps == 0:
        raise ValueError(
            "centroids.search = lloyd with centroids.refine_steps = 0 never moves a centroid: give "
            "1 at least"
        )


def _counts(config: MethodConfig) -> bool:
    """Return whether Fed-SCAN's over-clusters give the centroids and are merged."""
    by_neighbours = config.section(TrainingConfig).pretraining == "neighbours"
    return by_neighbours and config.section(CentroidConfig).search == "lloyd"


def _without_decorrelation(config: MethodConfig) -> None:
    _fits(config)
    loss = config.section(LossConfig)
    if loss.eta > 0 or loss.pretrain_eta > 0:
        raise ValueError(
            f"method = 'ccfc' is CCFC++ with eta = 0, but loss.eta = {loss.eta:g} and "
            f"loss.pretrain_eta = {loss.pretrain_eta:g}: set both to 0 or take 'ccfc++'"
        )


CCFC = System(
    title="CCFC",
    sends="model, centroids",
    kinds=("models", "centroids", "sums"),
    make=_MAKE,
    sections=_SECTIONS,
    counts=_counts,
    ignores=(*_IGNORES, "loss.scale"),
    needs=_NEEDS,
    fixed={"loss": {"eta": 0.0, "pretrain_eta": 0.0}},
    check=_without_decorrelation,
    rounds="training.rounds",
    summary="cluster-contrastive training from global centroids",
)
CCFC_PLUS_PLUS = replace(
    CCFC,
    title="CCFC++",
    fixed={},
    ignores=_IGNORES,
    check=_fits,
    summary="CCFC with decorrelated representations",
)
