"""Entry of FedDCN in the table of clustering methods."""

from ccfcpp.clustering.methods import System, lazy
from ccfcpp.clustering.systems.fed_dcn.config import FedDCNConfig
from ccfcpp.core.config import PrecisionConfig, Tree

_DCN: Tree = {"widths": [512, 256, 128], "latent": 5, "pretrain_epochs": 50, "epochs": 25}
FED_DCN = System(
    title="FedDCN",
    sends="decoder, centroids, model",
    # The first layer is over all pixels: its gradients are averages of them.
    kinds=("models", "centroids", "pixels", "synthetic"),
    make=lazy("ccfcpp.clustering.systems.fed_dcn.algorithm", "FedDCN"),
    sections={"dcn": FedDCNConfig, "compute": PrecisionConfig},
    fixed={"dcn": {**_DCN, "batch_size": 256, "learning_rate": 0.0072818}},
    ignores=("dcn.initial_count", "dcn.weight"),
    rounds="dcn.rounds",
    summary="deep clustering of own and synthetic samples, which the clients' decoders draw",
)
