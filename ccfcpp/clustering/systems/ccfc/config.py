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
    Unused,
    Weight,
    require_other,
)
from ccfcpp.core.errors import KeyValue, UsageError


class ModelConfig(Section):
    """The cluster-contrastive model."""

    backbone: Literal["auto", "conv", "resnet18", "scan"] = "auto"
    """``auto``: ``conv`` for images of one channel, ``resnet18`` for colour; ``scan``: Fed-SCAN's,
    by the section ``scan``, with a linear projector."""
    widths: tuple[Positive, ...] = (64, 128, 256)
    """Output channels of the convolutions of ``conv``."""
    projector_width: Positive = 256
    """Units of the projector's hidden layer."""
    latent: Positive = 256
    """Latent dimensions."""
    predictor_width: Positive = 16
    """Units of the predictor's hidden layer."""
    initialization: Literal["separate", "common"] = "separate"
    """``separate``: each client starts from weights of its own; ``common``: from the server's."""

    def unused(self) -> Unused:
        """Yield the settings of the backbones that are not chosen."""
        if self.backbone in ("resnet18", "scan"):
            yield "model.widths", require_other("model.backbone", "resnet18 or scan")
        if self.backbone == "scan":
            yield "model.projector_width", require_other("model.backbone", "scan")


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
    """Images of all clients that take part in a synchronised step."""
    gradients: Literal["full", "bfloat16"] = "full"
    """Precision in which clients send gradients of synchronised steps: as they are, or 16 bits."""
    predictor_steps: Count = 0
    """Steps before the first cluster-contrastive round in which the predictor alone is trained: a
    fresh one passes noise into a good encoder."""
    local_epochs: Positive = 1
    """Passes over the images in a round."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 128
    """Images of one client in a local step."""
    learning_rate: PositiveNumber = 1e-3
    """Learning rate of Adam."""
    schedule: Literal["constant", "cosine"] = "constant"
    """``cosine``: over the cluster-contrastive rounds the learning rate falls towards 0."""
    keep_optimizer: bool = True
    """Whether a client keeps its Adam moments from round to round (within a phase)."""

    @model_validator(mode="after")
    def _some_rounds(self) -> "TrainingConfig":
        if self.pretraining == "siamese" and self.rounds + self.pretrain_rounds == 0:
            raise UsageError(
                KeyValue("training.rounds", 0),
                " and ",
                KeyValue("training.pretrain_rounds", 0),
                ": run one at least",
            )
        return self


class LossConfig(Section):
    """Weights of the loss terms."""

    lam: Weight = 0.001
    """Weight λ of the model-contrastive term of Eq. (2)."""
    eta: Weight = 0.01
    """Weight η of the decorrelation term, Eq. (10), in the cluster-contrastive rounds."""
    pretrain_eta: Weight = 0.0
    """Weight of the decorrelation term in the pre-training rounds."""
    scale: Literal["paper", "feddecorr"] = "paper"
    """Size of the decorrelation term: as Eq. (10) has it, or as the public code of FedDecorr, which
    the paper follows, about N times as large for batches of N."""
    min_cluster_size: Positive = 2
    """Clusters with fewer samples in a batch are left out of Eq. (2); with 1 all that have any
    count. Eq. (2) as printed divides by the number of all clusters, also of those without any."""
