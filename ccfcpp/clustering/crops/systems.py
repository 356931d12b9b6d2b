"""Fed-EMP, described."""

from ccfcpp.clustering.crops.config import CropsConfig
from ccfcpp.clustering.exact.config import MeansConfig
from ccfcpp.clustering.methods import System, late
from ccfcpp.clustering.scan.config import IntensityViewsConfig
from ccfcpp.core.config import MethodConfig


def _check(config: MethodConfig) -> None:
    if config.compute.precision == "tf32":
        raise ValueError(
            "compute.precision = tf32 is refused for fed-emp: give float32 or bfloat16"
        )


FED_EMP = System(
    title="Fed-EMP",
    sends="sums of latents, of their products and of gradients, then sums and counts by cluster",
    kinds=("sums",),
    make=late("ccfcpp.clustering.crops.algorithm", "FedEmp"),
    sections={"crops": CropsConfig, "means": MeansConfig, "intensity": IntensityViewsConfig},
    check=_check,
    counts=lambda config: True,
    ignores=("compute.cohort",),
    rounds="crops.steps",
    round_steps="crops.steps_per_round",
    summary="an encoder that learns from small crops in synchronised steps, then exact k-means",
)
