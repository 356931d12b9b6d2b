"""Configuration of ``ccfcpp cluster``: data, clients, clusters, system, privacy and defences."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import (
    Affects,
    ClassesPartition,
    ConfigOfMethod,
    DataConfig,
    DirichletPartition,
    PartitionConfig,
    Positive,
    RunConfig,
    Share,
    Unused,
    VectorsConfig,
    require,
    require_other,
)
from ccfcpp.core.data_kinds import DataKind, kind_of
from ccfcpp.core.encoders import EncoderName
from ccfcpp.core.errors import KeyValue, UsageError
from ccfcpp.core.presets import preset_file
from ccfcpp.core.registry import Registry
from ccfcpp.data.registry import DATASETS
from ccfcpp.privacy.config import PrivacyConfig
from ccfcpp.robust.config import AnyAttack, AnyDefence, NoAttack, NoDefence

AUTO = "auto"
"""Value of ``clusters`` with which the number of clusters is chosen from the data."""

_FEWEST, _MOST = 2, 30
"""Smallest and largest number of clusters that ``auto`` may choose."""

_SAMPLES_EACH = 20
"""Samples that ``auto`` needs for each candidate number of clusters."""


def _parse_clusters(value: object) -> object:
    """Parse the setting ``clusters``: a number, a range such as ``5-30``, or ``auto``."""
    if value is None:
        return None
    text = str(value).strip()
    if text == AUTO:
        return text
    if re.fullmatch("0*[1-9][0-9]{0,5}", text):
        return int(text)
    if bounds := re.fullmatch("([1-9][0-9]{0,3})-([1-9][0-9]{0,3})", text):
        fewest, most = map(int, bounds.groups())
        if 2 <= fewest < most:
            return text
    raise UsageError(
        KeyValue("clusters", value),
        " is refused: it should be a number of clusters, 1 at least, auto, or a range from 2 or "
        "more such as 5-30",
    )


def _check_encoder(value: str | None) -> str | None:
    """Check that an encoder's name is well-formed; it need not be installed on this machine."""
    if value is not None:
        EncoderName.parse(value)
    return value


class ClusterDataConfig(DataConfig):
    """Settings of the data set of a run: how it is read, and how many of its images are used."""

    images: Positive | None = None
    """Number of images to use, drawn at random; the same ones for every seed."""
    imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    """Ratio of the largest class to the smallest in the images to use: class sizes fall
    geometrically. 1: all images. They are the same ones for every seed."""
    encoder: Annotated[
        str | None, AfterValidator(_check_encoder), Affects("what makes vectors of images or texts")
    ] = None
    """Pre-trained encoder that turns photos or texts into vectors at each client:
    ``torchvision:NAME`` or ``timm:NAME``, maybe ``@FILE.safetensors``;
    ``sentence-transformers:NAME`` or its folder; ``FILE.onnx`` or ``.pt``. The system then
    clusters these vectors."""
    encoder_hash: Annotated[
        str | None, Field(pattern="^[0-9a-f]{64}$"), Affects("which encoder is refused")
    ] = None
    """The encoder's content hash, which a run saves so that it refuses another encoder."""

    newcomers: Annotated[tuple[str, ...], Affects("who takes part")] = ()
    """Folders with images or vectors of clients that came later. Each subfolder, or file of
    vectors, is a client; a folder of images without subfolders is a single client."""

    @property
    def encoder_name(self) -> EncoderName | None:
        """The parsed name of the encoder; None without one."""
        return None if self.encoder is None else EncoderName.parse(self.encoder)


class SkewPartition(PartitionConfig):
    """Settings of the label-skew partition of the CCFC++ paper, with its degree p."""

    kind: Literal["skew"] = "skew"
    p: Share = 0.0
    """Degree of skew: 0 divides samples at random, 1 gives each client a single class."""

    @property
    def degree(self) -> dict[str, float | str]:
        """The degree of skew under its name ``p``, for the run's summary."""
        return {"p": self.p}


class PlainPartition(PartitionConfig):
    """Settings of a partition that has no degree of skew."""

    kind: Literal["iid", "folders"] = "iid"
    """``iid``: at random; ``folders``: each folder is a client; for vectors, each file, or each
    name in the column ``vectors.client_column``."""


AnyPartition = Annotated[
    SkewPartition | ClassesPartition | DirichletPartition | PlainPartition,
    Field(discriminator="kind"),
]


class ClusterConfig(RunConfig):
    """Settings of ``ccfcpp cluster`` for every system; a system adds groups of its own."""

    method: str = "ccfc++"
    """Name of the clustering system. ``ccfc`` is ``ccfc++`` without the decorrelation term."""
    preset: Annotated[
        Literal["default", "published", "fast", "best"], Affects("other settings")
    ] = "default"
    """``default``: the settings with the best results here on two cores; ``published``: CCFC and
    CCFC++ with the phases of their papers and code, for comparison with published values;
    ``fast`` and ``best``: Fed-EMP on CIFAR-10 and CIFAR-100 in a quarter of an hour of one core,
    or with a network for a GPU."""
    clusters: Annotated[int | str | None, BeforeValidator(_parse_clusters)] = None
    """Number of clusters k; by default the number of classes. With ``auto`` or a range such as
    ``5-30``, it is chosen from what clients send, and never by labels."""
    data: ClusterDataConfig = ClusterDataConfig()
    partition: AnyPartition = SkewPartition()
    vectors: VectorsConfig = VectorsConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    attack: AnyAttack = NoAttack()
    defence: AnyDefence = NoDefence()

    @property
    def data_kind(self) -> DataKind | None:
        """Whether the data are images or vectors; None if it is unknown."""
        if self.dataset in DATASETS and self.data.encoder is None:
            return "images"  # a name wins over a file of the same name
        return kind_of(self.dataset, self.data.encoder)

    @property
    def fewest_clusters(self) -> int:
        """Smallest candidate for k if k is chosen from the data; else 0."""
        if not isinstance(self.clusters, str):
            return 0
        return _FEWEST if self.clusters == AUTO else int(self.clusters.partition("-")[0])

    @property
    def grows(self) -> bool:
        """Whether clients that join later may add clusters by sending these clusters' centres."""
        return bool(self.data.newcomers) and not self.privacy.is_on

    def most_clusters(self, samples: int, classes: int, unit: str = "image") -> int:
        """Return the number of clusters k for some data, or its largest candidate.

        Args:
            samples: Number of samples.
            classes: Number of classes; 0 if it is not known.
            unit: Word for a sample in error messages.

        Returns:
            k; 0 if neither k nor the number of classes is known.

        Raises:
            UsageError: There are fewer samples than clusters.
        """
        if self.clusters == AUTO:
            most = min(_MOST, samples // _SAMPLES_EACH)
            if most <= _FEWEST:
                raise UsageError(
                    KeyValue("clusters", AUTO),
                    f" needs {(_FEWEST + 1) * _SAMPLES_EACH} {unit}s at least, and there are "
                    f"{samples}: give a number",
                )
            return most
        most = int(str(self.clusters).rpartition("-")[2]) if self.clusters else classes
        if most > samples:
            raise UsageError(
                KeyValue("clusters", self.clusters or most),
                f" is more than the {samples} {unit}s: give at most {samples}",
            )
        return most

    def unused(self) -> Unused:
        """Yield each setting without effect in this configuration, with what it would need."""
        yield from super().unused()
        if self.partition.kind != "folders":
            yield "vectors.client_column", [require("partition.kind", "folders")]
        if self.data.encoder is None:
            yield "vectors.text_column", require_other("data.encoder", None)
        if self.data_kind == "images":
            for name in VectorsConfig.model_fields.keys() - {"text_column"}:
                yield f"vectors.{name}", ["a dataset of vectors"]

    @model_validator(mode="after")
    def _check_choice_of_clusters(self) -> Self:
        if self.fewest_clusters and not METHODS[self.method].counts(self):
            raise UsageError(
                KeyValue("clusters", self.clusters),
                f" is refused: {self.method} with these settings needs the number of clusters; "
                "give it, or take ",
                KeyValue("method", "fed-scan", advised=True),
                ", or for vectors fed-em",
            )
        return self

    @model_validator(mode="after")
    def _check_preset(self) -> Self:
        if self.preset not in ("fast", "best"):
            return self
        there = preset_file(f"cluster/{self.preset}/{self.dataset}").is_file()
        if self.method != "fed-emp" or not there:
            raise UsageError(
                KeyValue("preset", self.preset),
                " is refused: it is of fed-emp on cifar10 and cifar100; take ",
                KeyValue("preset", "default", advised=True),
            )
        return self

    @model_validator(mode="after")
    def _no_encoder_with_categories(self) -> Self:
        if self.data.encoder and (named := (*self.vectors.categories, *self.vectors.dates)):
            raise UsageError(
                f"column {named[0]!r} of categories or dates has no effect on what an encoder "
                "embeds: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _no_noise_with_categories(self) -> Self:
        # Whatever the data are: a client's table is read by what a server says of vectors.
        if self.vectors.categories and self.privacy.level != "none":
            raise UsageError(
                KeyValue("privacy.level", self.privacy.level),
                " is refused with vectors.categories, whose vocabulary is counted without noise: "
                "leave one of them out, or take ",
                KeyValue("privacy.secure_sums", True, advised=True),
                " in place of noise",
            )
        return self

    @classmethod
    def keys_of_rounds(cls, tree: Mapping[str, object]) -> tuple[str, str]:
        """Return the dotted keys of the settings for rounds, and for steps in a round; "" if none.

        ``tree`` is a configuration as nested mappings, whose ``method`` names the system.
        """
        name = str(tree.get("method"))
        system = METHODS[name if name in METHODS else str(cls.model_fields["method"].default)]
        return system.rounds, system.round_steps

    @classmethod
    def methods(cls) -> Registry[ConfigOfMethod]:
        """Return the registry of clustering systems."""
        return METHODS
