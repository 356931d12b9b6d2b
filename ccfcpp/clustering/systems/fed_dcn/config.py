"""Settings of FedDCN; the defaults are the paper's for MNIST, in the digits of its public code."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ccfcpp.core.config import (
    BelowOne,
    Count,
    Positive,
    PositiveNumber,
    Section,
    Unused,
    Weight,
    require,
)
from ccfcpp.core.errors import KeyValue, UsageError


class FedDCNConfig(Section):
    """Settings of FedDCN: its autoencoder, losses, synthetic samples and rounds."""

    widths: tuple[Positive, ...] = (512, 256, 128)
    """Hidden widths of the encoder; the decoder mirrors them."""
    latent: Positive = 5
    """Number of dimensions of latents, and of the embedding."""
    pretrain_epochs: Count = 50
    """Passes over the samples without the term of k-means, at each client and at the server."""
    epochs: Count = 25
    """Passes with that term after it; k-means moves the centroids after each."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 256
    """Samples in a training step."""
    learning_rate: PositiveNumber = 0.0072818
    """Learning rate of Adam."""
    reconstruction: Weight = 0.33112
    """Weight of the reconstruction's squared error."""
    clustering: Weight = 0.062605
    """Weight of the squared distance of a latent to its centroid."""
    embedding: Literal["umap", "none"] = "umap"
    """What the server's network learns to map synthetic samples to: their embedding by ``umap`` (an
    extra); or ``none``."""
    geometry: Weight = 0.6441
    """Weight of the squared distance of a latent to the embedding, at the server."""
    neighbours: Annotated[int, Field(ge=2, le=10**6)] = 15
    """Number of nearest neighbours by which UMAP describes a sample."""
    min_dist: BelowOne = 0.1
    """UMAP's least distance between embedded samples."""
    synthetic: Positive = 5000
    """Number of synthetic samples, drawn with the clients' decoders."""
    counts: Literal["near", "all"] = "near"
    """Points of a client's centroid by which its synthetic samples are allotted: those within one
    standard deviation, or all (which the public code has where clients are small)."""
    rounds: Positive = 75
    """Largest number of rounds; the first begins with the clients' own networks."""
    local_epochs: Positive = 5
    """Passes over a client's samples in a round, each with as many synthetic samples."""
    stop: Literal["davies-bouldin", "last"] = "davies-bouldin"
    """Which round's model is delivered: that with the least Davies-Bouldin index of the synthetic
    samples' latents, which needs no labels; or the last."""
    patience: Positive = 15
    """The run ends after so many rounds without a smaller index."""

    @model_validator(mode="after")
    def _umap_has_enough(self) -> "FedDCNConfig":
        least = max(self.neighbours, self.latent + 1) + 1
        if self.embedding == "umap" and self.synthetic < least:
            raise UsageError(
                KeyValue("feddcn.synthetic", self.synthetic),
                f" is refused: UMAP needs {least} at least, more than neighbours and dimensions",
            )
        return self

    def unused(self) -> Unused:
        """Yield the settings that have no effect without an embedding, or without an index."""
        if self.embedding == "none":
            for key in ("geometry", "neighbours", "min_dist"):
                yield f"feddcn.{key}", [require("feddcn.embedding", "umap")]
        if self.stop == "last":
            yield "feddcn.patience", [require("feddcn.stop", "davies-bouldin")]
