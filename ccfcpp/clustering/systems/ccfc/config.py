"""Settings of CCFC and CCFC++.

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
    """Settings of the cluster-contrastive model."""

    backbone: Literal["auto", "conv", "resnet18", "scan"] = "auto"
    """``auto``: ``conv`` for images of one channel, ``resnet18`` for colour; ``scan``: Fed-SCAN's
    convolutions (section ``scan``), with a linear projector."""
    widths: tuple[Positive, ...] = (64, 128, 256)
    """Output channels of the convolutions of ``conv``."""
    projector_width: Positive = 256
    """Units of the projector's hidden layer."""
    latent: Positive = 256
    """Number of dimensions of a latent, the projector's output."""
    predictor_width: Positive = 16
    """Units of the predictor's hidden layer."""
    initialization: Literal["separate", "common"] = "separate"
    """``separate``: each client draws its own first weights; ``common``: all take the server's."""

    def unused(self) -> Unused:
        """Yield the settings that have no effect with the chosen backbone."""
        if self.backbone in ("resnet18", "scan"):
            yield "model.widths", require_other("model.backbone", "resnet18 or scan")
        if self.backbone == "scan":
            yield "model.projector_width", require_other("model.backbone", "scan")


class TrainingConfig(Section):
    """Settings of rounds, local training and synchronised steps."""

    rounds: Count = 30
    """Number of cluster-contrastive rounds, after pre-training."""
    pretraining: Literal["siamese", "neighbours"] = "siamese"
    """``siamese``: two random views of each image; ``neighbours``: Fed-SCAN's objective on this
    model's encoder, by the sections ``scan``, ``affine`` and ``intensity``."""
    pretrain_rounds: Count = 100
    """Rounds of siamese pre-training; ``neighbours`` takes as many as ``scan.steps`` need."""
    steps: Literal["local", "synchronised"] = "local"
    """``local``: clients train alone, and the server averages models; ``synchronised``: each step
    descends the loss over the batches of all clients together."""
    synchronised_batch: Annotated[int, Field(ge=2, le=10**6)] = 1280
    """Number of images, of all clients together, in a synchronised step."""
    gradients: Literal["full", "bfloat16"] = "full"
    """Precision in which clients send gradients of synchronised steps: unrounded, or in 16 bits."""
    predictor_steps: Count = 0
    """Steps before the first cluster-contrastive round that train only the predictor: with random
    weights, it would spoil a trained encoder."""
    local_epochs: Positive = 1
    """Passes over a client's images in a round."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 128
    """Images in a batch of local training."""
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
    """Weights of the loss terms; the equations are those of the CCFC++ paper."""

    lam: Weight = 0.001
    """Weight λ of the model-contrastive term of Eq. (2)."""
    eta: Weight = 0.01
    """Weight η of the decorrelation term, Eq. (10), in the cluster-contrastive rounds."""
    pretrain_eta: Weight = 0.0
    """Weight η of the decorrelation term in the pre-training rounds."""
    scale: Literal["paper", "feddecorr"] = "paper"
    """Scale of the decorrelation term: ``paper``: Eq. (10); ``feddecorr``: the public code of
    FedDecorr, which the paper follows, about N times as large for batches of N images."""
    min_cluster_size: Positive = 2
    """Clusters with fewer samples in a batch are left out of Eq. (2), which then averages over the
    others; as printed it divides by the number of all clusters, even empty ones."""
