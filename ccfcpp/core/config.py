"""The configuration: every choice of a run, its range and its default.

The defaults are the CCFC authors' choices for MNIST; ``configs/cluster/mnist.yaml`` explains them.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

# The upper bounds only keep numbers that no run can mean from overflowing deep inside a library.
Count = Annotated[int, Field(ge=0, le=10**6)]
Positive = Annotated[int, Field(ge=1, le=10**6)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Section(BaseModel):
    """A part of the configuration: fixed once made, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """Where the images come from."""

    root: str | None = None
    """Folder of the data sets; ``$CCFCPP_DATA`` where it is null."""
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Resize images to this many pixels a side."""


class ClusterDataConfig(DataConfig):
    """Where the images come from, and how many of them are used."""

    images: Positive | None = None
    """Use only so many images, drawn at random, alike for every seed."""


class PartitionConfig(Section):
    """How the images are divided among clients."""

    kind: Literal["skew", "iid", "folders"] = "skew"
    """``skew``: the CCFC++ paper's p-skew; ``iid``: at random; ``folders``: a folder a client."""
    p: Share = 0.0
    """Degree of skew: 0 gives shares at random, 1 one class a client."""
    clients: Positive | None = None
    """Number of clients; one a class (or a folder) where it is null."""


class AvailabilityConfig(Section):
    """Device failures and client sampling."""

    disconnection_rate: Share = 0.0
    """Share of the clients that are absent for the whole run."""
    dropout_rate: Share = 0.0
    """Probability that a client is absent from one round."""
    sample_fraction: PositiveShare = 1.0
    """Share of the connected clients that the server invites in a round."""

    @property
    def is_perfect(self) -> bool:
        """Whether all clients take part in all rounds."""
        return self.disconnection_rate == 0 and not self.varies

    @property
    def varies(self) -> bool:
        """Whether other clients may take part in one round than in another."""
        return self.dropout_rate > 0 or self.sample_fraction < 1


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
    pretrain_rounds: Count = 100
    """Rounds of contrastive pre-training before them."""
    local_epochs: Positive = 1
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 128
    learning_rate: PositiveNumber = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    """``cosine``: over the cluster-contrastive rounds the learning rate falls towards 0."""
    keep_optimizer: bool = True
    """Whether a client keeps its Adam moments from round to round (within a phase)."""


class LossConfig(Section):
    """Weights of the loss terms."""

    lam: Weight = 0.001
    """λ of Eq. (2): the model-contrastive term."""
    eta: Weight = 0.01
    """η of Eq. (10): the decorrelation term in the cluster-contrastive rounds."""
    pretrain_eta: Weight = 0.0
    """The same in the pre-training rounds."""
    min_cluster_size: Positive = 2
    """Clusters with fewer samples in a batch are left out of Eq. (2); as printed, it has 1."""


class CentroidConfig(Section):
    """From representations to global centroids."""

    encoder: Literal["local", "global"] = "local"
    """Whose representations a client clusters: its own trained model's, or the global model's."""
    server_weights: Literal["none", "sizes"] = "none"
    """Whether the server's k-means weighs an uploaded centroid by its cluster's size."""
    assignment: Literal["cosine", "euclidean"] = "cosine"
    """``cosine``: on normalised representations; ``euclidean``: Eq. (1) as printed."""
    refine_steps: Count = 0
    """Federated Lloyd steps after the server's k-means."""
    restarts: Positive = 10
    iterations: Positive = 100


class ViewsConfig(Section):
    """Random views of the pre-training rounds."""

    area: tuple[PositiveShare, PositiveShare] = (0.5, 1.0)
    """Range of the crop's share of the image's area."""
    ratio: tuple[PositiveNumber, PositiveNumber] = (3 / 4, 4 / 3)
    """Range of the crop's width over its height."""
    rotation: Weight = 10.0
    """Largest rotation in either direction, in degrees."""
    blur: tuple[Weight, Weight] = (0.1, 2.0)
    """Range of the Gaussian blur's standard deviation, in pixels."""
    blur_probability: Share = 0.5
    flip_probability: Share = 0.0

    @model_validator(mode="after")
    def _ranges_ascend(self) -> "ViewsConfig":
        for name in ("area", "ratio", "blur"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"views.{name} = [{low:g}, {high:g}]: the range must ascend")
        return self


class PixelsConfig(Section):
    """How the systems without a network see images."""

    normalise: bool = True
    """Whether an image's pixels are scaled to a vector of length 1; else they are in [0, 1]."""
    assignment: Literal["euclidean", "cosine"] = "euclidean"
    """``cosine``: to the centroids' directions alone."""


class FuzzyConfig(Section):
    """Fuzzy c-means, at the clients (FFCM) or at the server (FCM, SDA-FC-FCM)."""

    m: Annotated[float, Field(gt=1, le=100)] = 1.1
    """Fuzzifier: towards 1 memberships become those of k-means."""
    tolerance: Weight = 1e-4
    """It ends where no coordinate of a centroid moves further than this."""
    iterations: Positive = 200
    restarts: Positive = 3
    """Of the server's, whose best is taken; clients start from the global centroids."""


class KFedConfig(Section):
    """k-FED."""

    local_clusters: Positive | None = None
    """Clusters that a client is assumed to hold, the paper's k'; k where it is null."""


class FFCMConfig(Section):
    """FFCM: rounds of fuzzy c-means at the clients."""

    rounds: Positive = 10
    """At most."""
    tolerance: Weight = 1e-4
    """The run ends where no coordinate of a global centroid moves further than this."""


class GANConfig(Section):
    """What clients train to make synthetic images (SDA-FC, PPFC-GAN)."""

    noise: Positive = 62
    """Noise inputs of the generator, beside a one-hot code of k."""
    generator_width: Positive = 1024
    generator_channels: tuple[Positive, ...] = (128, 64)
    """Channels before each doubling of the resolution, which ends at the images' size."""
    discriminator_channels: tuple[Positive, ...] = (64, 128, 256)
    """Output channels of its convolutions, each of which halves the resolution."""
    discriminator_width: Positive = 1024
    epochs: Positive = 50
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 64
    generator_rate: PositiveNumber = 1.8e-3
    discriminator_rate: PositiveNumber = 2e-4
    """Learning rates of the first epoch."""
    rate_decay: PositiveShare = 0.99
    """Factor of both learning rates from epoch to epoch."""
    images: Positive | None = None
    """Synthetic images that a client sends; as many as it holds where it is null."""


class DCNConfig(Section):
    """The deep clustering network at the server (PPFC-GAN)."""

    widths: tuple[Positive, ...] = (500, 500, 2000)
    """Hidden widths of the encoder; the decoder mirrors them."""
    latent: Positive = 10
    pretrain_epochs: Count = 50
    """Epochs on the reconstruction alone, before k-means gives the first centroids."""
    epochs: Count = 50
    """Epochs of alternating updates."""
    batch_size: Positive = 256
    learning_rate: PositiveNumber = 1e-3
    weight: Weight = 1.0
    """λ: the k-means term beside the reconstruction."""
    initial_count: Positive = 100
    """Samples that each centroid counts as its own at first, so that it does not jump."""


class ComputeConfig(Section):
    """How the machine is used; results change by rounding alone."""

    cohort: Literal["auto"] | Positive = "auto"
    """How many clients are trained side by side; ``auto``: as many as memory serves."""
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    """Of the networks' matrix products: ``tf32`` rounds their inputs, and needs CUDA;
    ``bfloat16`` rounds inputs and results."""

    @field_validator("cohort", mode="before")
    @classmethod
    def _cohort_is_auto_or_a_number(cls, value: object) -> object:
        # Else the complaint would be about one of the two types alone.
        if value != "auto" and not re.fullmatch("0*[1-9][0-9]{0,5}", str(value)):
            raise ValueError(
                f"compute.cohort = {value} is refused: it should be auto or a number of clients, "
                "1 at least"
            )
        return value


class RunConfig(Section):
    """What every run has."""

    dataset: Annotated[str, Field(min_length=1)] = "digits"
    """A data set's name, or a path to an image folder, an archive of one, or an ``.npz`` file."""
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    evaluate_every: Positive = 1
    """Score the global model after each so many rounds."""
    tensorboard: bool = False
    """Log the rounds for TensorBoard too, which is an extra to install."""
    availability: AvailabilityConfig = AvailabilityConfig()
    compute: ComputeConfig = ComputeConfig()


MethodName = Literal[
    "km",
    "fcm",
    "k-fed",
    "ffcm-avg",
    "ffcm-km",
    "sda-fc-km",
    "sda-fc-fcm",
    "ppfc-gan",
    "ccfc",
    "ccfc++",
]
"""The systems of the CCFC++ paper's tables, in their order."""


class ClusterConfig(RunConfig):
    """All of ``ccfcpp cluster``."""

    method: MethodName = "ccfc++"
    """``ccfc`` is ``ccfc++`` without the decorrelation term."""
    clusters: Positive | None = None
    """Number of clusters k; the number of classes where it is null."""
    data: ClusterDataConfig = ClusterDataConfig()
    partition: PartitionConfig = PartitionConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    loss: LossConfig = LossConfig()
    centroids: CentroidConfig = CentroidConfig()
    views: ViewsConfig = ViewsConfig()
    pixels: PixelsConfig = PixelsConfig()
    fuzzy: FuzzyConfig = FuzzyConfig()
    kfed: KFedConfig = KFedConfig()
    ffcm: FFCMConfig = FFCMConfig()
    gan: GANConfig = GANConfig()
    dcn: DCNConfig = DCNConfig()

    @model_validator(mode="after")
    def _method_fits(self) -> "ClusterConfig":
        if self.method == "ccfc" and (self.loss.eta > 0 or self.loss.pretrain_eta > 0):
            raise ValueError(
                f"method = 'ccfc' is CCFC++ with eta = 0, but loss.eta = {self.loss.eta:g} and "
                f"loss.pretrain_eta = {self.loss.pretrain_eta:g}: set both to 0 or take 'ccfc++'"
            )
        if self.training.rounds + self.training.pretrain_rounds == 0:
            raise ValueError(
                "training.rounds = 0 and training.pretrain_rounds = 0: run one at least"
            )
        return self
