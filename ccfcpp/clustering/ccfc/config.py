"""The configuration of CCFC and CCFC++.

The defaults are the authors' choices for MNIST; ``configs/cluster/mnist.yaml`` explains them.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ccfcpp.core.config import (
    Count,
    Positive,
    PositiveNumber,
    Section,
    Weight,
)


class ModelConfig(Section):
    """The cluster-contrastive model."""

    backbone: Literal["auto", "conv", "resnet18"] = "auto"
    """``auto``: ``conv`` for images of one channel, ``resnet18`` for colour."""
    widths: tuple[Positive, ...] = (64, 128, 256)
    """Output channels of the convolutions of ``conv``."""
    projector_width: Positive = 256
    latent: Positive = 256
    predictor_width: Positive = 16
    initialization: Literal["separate", "common"] = "separate"
    """``separate``: each client starts from weights of its own; ``common``: from the server's."""


class TrainingConfig(Section):
    """Rounds and local training."""

    rounds: Count = 30
    """Cluster-contrastive rounds."""
    pretraining: Literal["siamese", "neighbours"] = "siamese"
    """``siamese``: two random views of each image; ``neighbours``: Fed-SCAN's objective on this
    model's encoder, by the sections ``scan``, ``affine`` and ``intensity``."""
    pretrain_rounds: Count = 100
    """Rounds of siamese pre-training; ``neighbours`` takes as many as ``scan.steps`` need."""
    steps: Literal["local", "synchronised"] = "local"
    """``local``: clients train by themselves, and models are averaged; ``synchronised``: each step
    is one over the batches of all clients."""
    synchronised_batch: Annotated[int, Field(ge=2, le=10**6)] = 1280
    """Images of all clients together in a synchronised step."""
    local_epochs: Positive = 1
    """Passes over the images in a round."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 128
    """Images of one client in a local step."""
    learning_rate: PositiveNumber = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    """``cosine``: over the cluster-contrastive rounds the learning rate falls towards 0."""
    keep_optimizer: bool = True
    """Whether a client keeps its Adam moments from round to round (within a phase)."""

    @model_validator(mode="after")
    def _some_rounds(self) -> "TrainingConfig":
        if self.pretraining == "siamese" and self.rounds + self.pretrain_rounds == 0:
            raise ValueError(
                "training.rounds = 0 and training.pretrain_rounds = 0: run one at least"
            )
        return self


class LossConfig(Section):
    """Weights of the loss terms."""

    lam: Weight = 0.001
    """λ of Eq. (2): the model-contrastive term."""
    eta: Weight = 0.01
    """η of Eq. (10): the decorrelation term in the cluster-contrastive rounds."""
    pretrain_eta: Weight = 0.0
    """The same in the pre-training rounds."""
    min_cluster_size: Positive = 2
    """Clusters with fewer samples in a batch are left out of Eq. (2); with 1 all that have any
    count. Eq. (2) as printed divides by the number of all clusters, also of those without any."""
