"""Configuration of ``ccfcpp classify``.

Defaults are those of FedDecorr's public code for CIFAR-10, except the data set and the network,
which are small.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from ccfcpp.core.config import (
    BelowOne,
    ClassesPartition,
    ComputeConfig,
    ConfigOfMethod,
    DataConfig,
    DirichletPartition,
    PartitionConfig,
    Positive,
    PositiveNumber,
    PositiveShare,
    RunConfig,
    Section,
    Unused,
    Weight,
    require,
    require_other,
    unused_without,
)
from ccfcpp.core.registry import Registry
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.robust.config import AnyAttack, AnyDefence, NoAttack, NoDefence
from supervised.classifiers import CLASSIFIERS


class SamplesConfig(DataConfig):
    """Settings of the data set: which images are used, test split, normalisation."""

    classes: tuple[str, ...] | None = None
    """Use only these classes."""
    train_images: Positive | None = None
    """Use only so many training images, drawn at random."""
    test_images: Positive | None = None
    """Use only so many test images, drawn at random."""
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each class that is held out for testing if the data set has no test images."""
    mean: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] | None = None
    """Mean of each channel, which is subtracted from pixels in [0, 1]."""
    std: tuple[PositiveNumber, ...] | None = None
    """Standard deviation by which each channel is divided, after ``mean`` is subtracted."""

    @field_validator("classes", mode="before")
    @classmethod
    def _names_are_text(cls, value: object) -> object:
        # Names such as the digits' look like numbers in YAML.
        return [str(name) for name in value] if isinstance(value, list) else value


class EqualShare(Section):
    """Base class of partitions that may be reduced, so that clients hold equally many images."""

    equal_share: PositiveShare | None = None
    """Each client keeps so many images as this share of the smallest client's, drawn at random;
    null: it keeps all. Equal clients count alike in the mean of their models."""


class DirichletLabels(EqualShare, DirichletPartition):
    """Settings of a partition: clients' shares of each class are drawn from Dir(alpha).

    As with all ``EqualShare`` partitions, clients may be reduced to equally many images.
    """


class ClassesOfClients(EqualShare, ClassesPartition):
    """Settings of a partition in which each client has a fixed number of classes."""


class PlainLabels(EqualShare, PartitionConfig):
    """Partition at random, or by domain: partitions without a degree of heterogeneity."""

    kind: Literal["iid", "domain"] = "iid"
    """``iid``: at random; ``domain``: each folder is a client."""


class ClassifierConfig(Section):
    """Base class of the settings of the network (``model``)."""

    name: str
    """Name of the network."""


class SmallNetwork(ClassifierConfig):
    """Settings of a small convolutional network for small images."""

    name: Literal["small"] = "small"
    widths: tuple[Positive, ...] = (32, 64)
    """Output channels of the convolutions."""
    representation: Positive = 128
    """Width of the last hidden layer."""
    batch_norm: bool = True
    """Whether it is batch-normalised; the others always are."""


class MobileNetwork(ClassifierConfig):
    """Settings of the network MobileNetV2 (Sandler et al. 2018): its variant."""

    name: Literal["mobilenetv2"] = "mobilenetv2"
    variant: Literal["paper", "code"] = "code"
    """The network of Sandler et al., or that of the FedDecorr authors' code."""


class KnownNetwork(ClassifierConfig):
    """Settings of a published network, which has no options but its name."""

    name: Literal["resnet18", "resnet20", "resnet32", "alexnet"] = "resnet18"


class LocalTrainingConfig(Section):
    """Settings of training: number of rounds, and SGD at the clients."""

    rounds: Positive = 100
    """Number of rounds."""
    local_epochs: Positive = 10
    """Passes over a client's images in a round."""
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 64
    """Images of one client in a local step."""
    learning_rate: PositiveNumber = 0.01
    """Learning rate of the clients' SGD."""
    momentum: BelowOne = 0.9
    """Momentum of the clients' SGD."""
    weight_decay: Weight = 1e-5
    """Weight decay of the clients' SGD."""


class DecorrelationConfig(Section):
    """Settings of the loss term that decorrelates the dimensions of representations."""

    kind: str
    """The term that decorrelates representations."""


class NoTerm(DecorrelationConfig):
    """Settings of a loss without a decorrelation term: its weight is 0, and nothing is logged."""

    kind: Literal["none"] = "none"
    beta: ClassVar[float] = 0.0
    log_epochs: ClassVar[bool] = False


class TermConfig(DecorrelationConfig):
    """Settings that all decorrelation loss terms share: weight, and whether it is logged."""

    beta: Weight = 0.1
    """Weight β of the decorrelation term in the loss."""
    log_epochs: bool = False
    """Log the term by itself, for each client and local epoch: clients send it."""

    def unused(self) -> Unused:
        """Yield the settings of a term whose weight is 0: it is not computed."""
        if self.beta == 0:
            for key in type(self).model_fields.keys() - {"kind", "beta"}:
                yield f"decorrelation.{key}", require_other("decorrelation.beta", 0.0)


class FedDecorr(TermConfig):
    """Settings of the FedDecorr loss term, which decorrelates the dimensions of representations."""

    kind: Literal["feddecorr"] = "feddecorr"
    scale: Literal["paper", "code"] = "code"
    """The scale of Algorithm 1, or that of the authors' code, about N times as large."""


class DeCov(TermConfig):
    """Settings of the DeCov loss term: squared covariances (Cogswell et al. 2016)."""

    kind: Literal["decov"] = "decov"


class StructuredDeCov(TermConfig):
    """Settings of Structured-DeCov, the DeCov loss term between groups of dimensions."""

    kind: Literal["structured-decov"] = "structured-decov"
    groups: Positive = 8
    """Number of groups of dimensions."""


AnyTerm = FedDecorr | NoTerm | DeCov | StructuredDeCov


class AugmentationConfig(Section):
    """Settings of the augmentation of training images, drawn for each image in each epoch."""

    crop_padding: Annotated[int, Field(ge=0, le=64)] = 0
    """Zeros around an image before a crop of its own size is taken."""
    flip: bool = False
    """Mirror half of the images."""
    autoaugment: bool = False
    """AutoAugment's policy for CIFAR-10; for colour images."""
    rotation: Weight = 0.0
    """Largest rotation in either direction, in degrees."""


class ClassifyConfig(RunConfig):
    """Configuration of ``ccfcpp classify``; methods may have sections of their own besides."""

    method: str = "fedavg"
    """Method of training and aggregation."""
    data: SamplesConfig = SamplesConfig()
    partition: Annotated[
        DirichletLabels | ClassesOfClients | PlainLabels, Field(discriminator="kind")
    ] = DirichletLabels()
    model: Annotated[SmallNetwork | MobileNetwork | KnownNetwork, Field(discriminator="name")] = (
        SmallNetwork()
    )
    training: LocalTrainingConfig = LocalTrainingConfig()
    decorrelation: Annotated[AnyTerm, Field(discriminator="kind")] = FedDecorr()
    augmentation: AugmentationConfig = AugmentationConfig()
    compute: ComputeConfig = ComputeConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    attack: AnyAttack = NoAttack()
    defence: AnyDefence = NoDefence()

    def unused(self) -> Unused:
        """Yield the settings without effect, given the others, with what each would need."""
        yield from super().unused()
        if self.defence.rule in ("median", "geometric-median"):
            # In classification, these rules do not use the number of hostile clients.
            yield from unused_without(
                "defence.hostile", require("defence.rule", "trimmed-mean or krum or multi-krum")
            )

    @classmethod
    def keys_of_rounds(cls, tree: Mapping[str, object]) -> tuple[str, str]:
        """Return the keys of the number of rounds and of steps per round; "" as there is none."""
        return "training.rounds", ""

    @classmethod
    def methods(cls) -> Registry[ConfigOfMethod]:
        """Return the registry of all methods of classification, by name."""
        return CLASSIFIERS
