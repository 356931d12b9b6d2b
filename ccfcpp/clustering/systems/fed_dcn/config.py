"""Settings of FedDCN: those of a deep clustering network (DCN), and what it has beside them."""

from typing import Literal

from ccfcpp.clustering.systems.synthetic.config import DCNConfig
from ccfcpp.core.config import Positive, Unused, Weight, require


class FedDCNConfig(DCNConfig):
    """Settings of FedDCN; the defaults are the paper's for MNIST, in digits of its public code."""

    clustering: Weight = 0.18907
    """Weight of a latent's squared distance from its centroid; the mean squared error has 1."""
    geometry: Weight = 1.9452
    """Weight of the mean squared difference of a latent from its target."""
    embedding: Literal["umap", "none"] = "umap"
    """Source of these targets: ``umap`` (an extra) of a client's own samples in the first round and
    of the synthetic ones later; or ``none``."""
    synthetic: Positive = 5000
    """Number of synthetic samples, drawn with the clients' decoders."""
    rounds: Positive = 76
    """Largest number of rounds; in the first, clients train networks of their own."""
    local_epochs: Positive = 5
    """Passes over a client's samples in a later round, with as many synthetic samples."""
    stop: Literal["davies-bouldin", "last"] = "davies-bouldin"
    """Round that is delivered: that of the least index of synthetic latents; or the last."""
    patience: Positive = 15
    """The run ends after so many rounds without a smaller index."""

    def unused(self) -> Unused:
        """Yield the settings that have no effect without an embedding, or without an index."""
        if self.embedding == "none":
            yield "dcn.geometry", [require("dcn.embedding", "umap")]
        if self.stop == "last":
            yield "dcn.patience", [require("dcn.stop", "davies-bouldin")]
