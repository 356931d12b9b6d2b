"""Entry of Orchestra in the table of clustering methods."""

from ccfcpp.clustering.methods import System, lazy
from ccfcpp.clustering.systems.orchestra.config import OrchestraConfig
from ccfcpp.core.config import ViewsConfig

ORCHESTRA = System(
    title="Orchestra",
    sends="models, centroids",
    kinds=("models", "centroids"),
    make=lazy("ccfcpp.clustering.systems.orchestra.algorithm", "Orchestra"),
    sections={"orchestra": OrchestraConfig, "views": ViewsConfig},
    fixed={"views": {"blur_probability": 0.0}},
    rounds="orchestra.rounds",
    summary="equally large clusters of clients' centroids, on which views must agree",
)
