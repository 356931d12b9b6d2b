"""Entry of Fed-EMP in the table of clustering methods."""

from ccfcpp.clustering.methods import System, lazy, without_tf32
from ccfcpp.clustering.systems.fed_emp.config import CropsConfig
from ccfcpp.clustering.systems.pooled.config import MeansConfig
from ccfcpp.clustering.systems.pooled.systems import unused_of_means
from ccfcpp.core.config import IntensityViewsConfig, PrecisionConfig

FED_EMP = System(
    title="Fed-EMP",
    sends="sums of latents, of their products and of gradients, then sums and counts by cluster",
    kinds=("sums",),
    make=lazy("ccfcpp.clustering.systems.fed_emp.algorithm", "FedEmp"),
    sections={
        "crops": CropsConfig,
        "means": MeansConfig,
        "intensity": IntensityViewsConfig,
        "compute": PrecisionConfig,
    },
    check=without_tf32,
    counts=lambda config: True,
    unused=unused_of_means,
    rounds="crops.steps",
    round_steps="crops.steps_per_round",
    summary="an encoder that learns from small crops in synchronised steps, then exact k-means",
)
