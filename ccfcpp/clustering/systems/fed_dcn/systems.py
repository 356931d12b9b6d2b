"""Entry of FedDCN in the table of clustering methods."""

from ccfcpp.clustering.kmeans.config import KMeansConfig
from ccfcpp.clustering.methods import System, lazy
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.core.config import ComputeConfig

FED_DCN = System(
    title="FedDCN",
    sends="decoder, centroids, model",
    kinds=("models", "centroids", "synthetic"),
    make=lazy("ccfcpp.clustering.systems.fed_dcn.algorithm", "FedDCN"),
    sections={
        "feddcn": FedDCNConfig,
        "centroids": KMeansConfig,
        "compute": ComputeConfig,
    },
    ignores=("privacy.smallest_count",),
    rounds="feddcn.rounds",
    takes=("images", "vectors"),
    summary="deep clustering of own and synthetic samples, which the clients' decoders draw",
)
