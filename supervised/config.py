"""The configuration of ``ccfcpp classify``: every choice of a run, its range and its default.

The defaults are those of FedDecorr's public code for CIFAR-10, but for the data set and the
network, which are small.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ccfcpp.core.conditions import Unless, When
from ccfcpp.core.config import (
    BelowOne,
    DataConfig,
    Heeding,
    MethodConfig,
    Positive,
    PositiveNumber,
    PositiveShare,
    Section,
    Weight,
)
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.robust.config import AttackConfig, DefenceConfig
from supervised.classifiers import CLASSIFIERS

_DIRICHLET = When("partition.kind", "dirichlet")
_SMALL = When("model.name", "small")


class SamplesConfig(DataConfig):
    """Where the images come from, and which of them are used."""

    classes: tuple[str, ...] | None = None
    """Use only these classes."""
    train_images: Positive | None = None
    """Use only so many training images, drawn at random."""
    test_images: Positive | None = None
    """Use only so many test images, drawn at random."""
    test_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each class that is held out for testing where the data set has no test images."""
    mean: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] | None = None
    """Subtracted from pixels in [0, 1], a number for each channel."""
    std: tuple[PositiveNumber, ...] | None = None
    """What they are then divided by."""

    @field_validator("classes", mode="before")
    @classmethod
    def _names_are_text(cls, value: object) -> object:
        # Names such as the digits' look like numbers in YAML.
        return [str(name) for name in value] if isinstance(value, list) else value


class LabelPartitionConfig(Section):
    """How the training images are divided among clients."""

    kind: Literal["dirichlet", "classes", "iid", "domain"] = "dirichlet"
    """``dirichlet``: shares of each class by Dir(alpha); ``classes``: M classes a client;
    ``iid``: at random; ``domain``: each folder is a client."""
    alpha: Annotated[float, Field(gt=0), _DIRICHLET] = 0.5
    """Concentration of ``dirichlet``: heterogeneous where it is small; ``inf`` is ``iid``."""
    classes_per_client: Annotated[Positive, When("partition.kind", "classes")] = 2
    """M of ``classes``."""
    clients: Positive | None = None
    """Number of clients: 10 where it is null, or as many as folders."""
    min_samples: Annotated[Positive, _DIRICHLET] = 10
    """``dirichlet`` is drawn again until each client holds so many."""
    equal_share: PositiveShare | None = None
    """Each client keeps so many images as this share of the smallest client's, drawn at random;
    null: it keeps all. Equal clients count alike in the mean of their models."""


class ClassifierConfig(Section):
    """The network."""

    name: Literal["small", "mobilenetv2", "resnet18", "resnet20", "resnet32", "alexnet"] = "small"
    variant: Annotated[Literal["paper", "code"], When("model.name", "mobilenetv2")] = "code"
    """Of ``mobilenetv2``: Sandler et al., or as the FedDecorr authors' code has it."""
    widths: Annotated[tuple[Positive, ...], _SMALL] = (32, 64)
    """Output channels of the convolutions of ``small``."""
    representation: Annotated[Positive, _SMALL] = 128
    """Width of the last hidden layer of ``small``."""
    batch_norm: Annotated[bool, _SMALL] = True
    """Whether ``small`` is batch-normalised; the others always are."""


class LocalTrainingConfig(Section):
    """Rounds and local training."""

    rounds: Positive = 100
    local_epochs: Positive = 10
    batch_size: Annotated[int, Field(ge=2, le=10**6)] = 64
    learning_rate: PositiveNumber = 0.01
    momentum: BelowOne = 0.9
    weight_decay: Weight = 1e-5


class DecorrelationConfig(Section):
    """The decorrelation term."""

    kind: Literal["none", "feddecorr", "decov", "structured-decov"] = "feddecorr"
    beta: Annotated[Weight, Unless("decorrelation.kind", "none")] = 0.1
    """β of Eq. (10): the term's weight."""
    scale: Annotated[Literal["paper", "code"], When("decorrelation.kind", "feddecorr")] = "code"
    """Of ``feddecorr``: as Algorithm 1 has it, or as the authors' code, about N times as large."""
    groups: Annotated[Positive, When("decorrelation.kind", "structured-decov")] = 8
    """Of ``structured-decov``: number of groups of dimensions."""
    log_epochs: Annotated[bool, Unless("decorrelation.kind", "none")] = False
    """Log the term by itself, for each client and local epoch: clients send it."""


class AugmentationConfig(Section):
    """Random changes of the training images; every image has its own in each epoch."""

    crop_padding: Annotated[int, Field(ge=0, le=64)] = 0
    """Zeros around an image before a crop of its own size is taken."""
    flip: bool = False
    """Mirror half of the images."""
    autoaugment: bool = False
    """AutoAugment's policy for CIFAR-10; for colour images."""
    rotation: Weight = 0.0
    """Largest rotation in either direction, in degrees."""


class ClassifyConfig(MethodConfig):
    """All of ``ccfcpp classify``, but for the sections that methods bring."""

    method: str = "fedavg"
    data: SamplesConfig = SamplesConfig()
    partition: LabelPartitionConfig = LabelPartitionConfig()
    model: ClassifierConfig = ClassifierConfig()
    training: LocalTrainingConfig = LocalTrainingConfig()
    decorrelation: DecorrelationConfig = DecorrelationConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    attack: AttackConfig = AttackConfig()
    defence: DefenceConfig = DefenceConfig()

    @classmethod
    def own_methods(cls) -> list[str]:
        """The methods of this library."""
        return CLASSIFIERS.own()

    @classmethod
    def methods(cls) -> Mapping[str, Heeding]:
        """All methods."""
        return CLASSIFIERS
