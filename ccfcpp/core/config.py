"""The configuration that every run has, and the types that configurations consist of."""

import csv
import difflib
import functools
import io
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from ccfcpp.core.errors import KeyValue, Piece, UsageError, in_file

if TYPE_CHECKING:
    from ccfcpp.core.registry import Registry

Tree = dict[str, Any]
"""Settings by key; a section is a tree of its own."""
S = TypeVar("S", bound="Section")
_SIMILAR = 0.4
"""Least similarity of a proposed name, by ``difflib``'s ratio."""

# The upper bounds only keep absurd numbers from overflowing deep inside a library.
Count = Annotated[int, Field(ge=0, le=10**6)]
Positive = Annotated[int, Field(ge=1, le=10**6)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, le=3)]
"""A logarithm of a factor; beyond the bound images would be black or white."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]


Unused = Iterator[tuple[str, Sequence[Piece]]]
"""Yields the keys of settings without effect, each with the other settings that it needs."""


@dataclass(frozen=True)
class Affects:
    """Annotation of a setting that changes only ``what``, such as files, and no result of a run."""

    what: str


class Section(BaseModel):
    """Base class of a configuration's sections (groups of settings): immutable, no unknown keys.

    A section of several kinds, such as the partition, is a union of classes with
    ``Field(discriminator=…)``, each with the settings of its kind alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    def unused(self) -> Unused:
        """Yield (key, needs) of each setting without effect; ``needs``: what would give it one."""
        yield from ()


def require(key: str, value: object = True) -> KeyValue:
    """Return ``key = value`` as what another setting needs, for ``Section.unused``."""
    return KeyValue(key, value, advised=True)


def require_other(key: str, value: object) -> tuple[Piece, ...]:
    """Return "``key`` other than ``value``" as what another setting needs (``Section.unused``)."""
    return require(key, ...), f" other than {in_file(value)}"


def unused_without(keys: str, *needs: Piece) -> Unused:
    """Yield (key, ``needs``) for each of the keys, separated by spaces; see ``Section.unused``."""
    yield from ((key, needs) for key in keys.split())


def kinds_of(field: FieldInfo) -> list[type[Section]]:
    """Return the possible classes of a field that is a section; [] if it is a single setting."""
    kinds = get_args(field.annotation) or (field.annotation,)
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]


@functools.cache
def fields_of(kind: type[Section]) -> dict[str, FieldInfo]:
    """Return the fields of a configuration class and of all its sections' kinds, by dotted key."""
    fields: dict[str, FieldInfo] = {}
    for name, field in kind.model_fields.items():
        if kinds := kinds_of(field):
            for key, own in (each for kind in kinds for each in fields_of(kind).items()):
                fields.setdefault(f"{name}.{key}", own)
        else:
            fields[name] = field
    return fields


class DataConfig(Section):
    """Settings of how images are read."""

    root: Annotated[str | None, Affects("where the data set is looked for")] = None
    """Folder of the data sets; by default ``$CCFCPP_DATA``, or a cache."""
    image_size: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Resize images to this many pixels a side. If null, named data sets keep their size, and other
    images get a size chosen from theirs."""
    window: Annotated[
        tuple[Finite, Finite] | None, Affects("how files of more than 8 bits are read")
    ] = None
    """Values that become black and white in files of more than 8 bits, such as 0,4095; by
    default the window of a DICOM file, or else the smallest and the largest value of each image."""
    skip: Annotated[Share, Affects("which files may be left out")] = 0.01
    """Largest share of files that may be unreadable and are left out, such as 5%; above 0, one file
    is always allowed."""
    max_pixels: Annotated[int, Field(ge=1, le=10**9), Affects("which files may be read")] = 10**8
    """Largest number of pixels in an image file."""

    @field_validator("window", mode="before")
    @classmethod
    def _window_is_a_range(cls, value: object) -> object:
        if value is None:
            return None
        parts = value.split(",") if isinstance(value, str) else value
        try:
            low, high = map(float, parts) if isinstance(parts, list | tuple) else (0, 0)
        except (TypeError, ValueError):
            low, high = 0, 0
        if not low < high:
            raise UsageError(
                KeyValue("data.window", value),
                " is refused: it should be the values that become black and white, such as 0,4095",
            )
        return low, high

    @field_validator("skip", mode="before")
    @classmethod
    def _skip_may_be_percent(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            raise UsageError(
                KeyValue("data.skip", value),
                " is refused: it should be a share, such as 5% or 0.05",
            ) from None


def _split(names: object) -> object:
    """Split a text at its commas, as the command line gives several names."""
    if not isinstance(names, str):
        return names
    row = next(csv.reader([" ".join(names.splitlines())], skipinitialspace=True))
    return [name.strip() for name in row or [""]]


def join_names(names: Iterable[str]) -> str:
    """Join names to a text that ``ColumnNames`` splits again."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(names)
    return text.getvalue()


ColumnNames = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""Names of columns; a text is split at its commas, but for those within double quotes."""


class VectorsConfig(Section):
    """Settings of how vectors are read, and how clients preprocess them before a system runs.

    Statistics of all clients' vectors, such as means, are computed exactly, from sums.
    """

    label_column: str | None = None
    """Name of the column with classes, used only for scores and simulated partitions."""
    client_column: str | None = None
    """Name of the column that says which client holds a row, for ``partition.kind = folders``."""
    text_column: Annotated[str, Affects("which column of a table is embedded")] = "text"
    """Name of the column with texts, for an encoder of texts."""
    categories: ColumnNames = ()
    """Names of columns with categories: strings, truth values or codes. Each becomes columns of 0
    and 1, one for each frequent category of all clients."""
    dates: Annotated[ColumnNames, Affects("which columns are read as dates")] = ()
    """Names of columns with dates, in the form 2026-01-31; they become days since 1970."""
    most_categories: Annotated[int, Field(ge=1, le=1000)] = 20
    """Number of categories of a column that become columns of their own, the most frequent."""
    category_weight: PositiveNumber | None = None
    """Number in place of 1 in the columns of a category, which are then not scaled: two rows of
    different categories have a squared distance of twice its square. If null: scaled as ``scale``
    says."""
    rare: Positive = 5
    """Rows of a client that a category needs to be counted for the list of frequent ones."""
    missing: Literal["refuse", "mean"] = "refuse"
    """Missing values: ``mean`` makes them the mean of their column over all clients."""
    scale: Literal["none", "standard", "unit"] = "none"
    """Scaling. ``standard``: each column to mean 0 and variance 1 over all clients, a constant one
    to 0, and the columns of a category to variance 1 together; ``unit``: each vector to length
    1."""
    components: Positive | None = None
    """Project vectors onto this many principal components, those of all clients, after scaling."""
    whiten: bool = False
    """Whether to scale each component to variance 1."""

    def unused(self) -> Unused:
        """Yield settings without an effect: of components or categories, if there are none."""
        if self.components is None:
            yield "vectors.whiten", require_other("vectors.components", None)
        if not self.categories:
            for key in ("most_categories", "category_weight", "rare"):
                yield f"vectors.{key}", require_other("vectors.categories", ())

    @property
    def is_plain(self) -> bool:
        """Whether vectors stay unchanged."""
        plain = self.missing == "refuse" and self.scale == "none" and self.components is None
        return plain and not self.categories

    @property
    def slots(self) -> int:
        """Number of columns of 0 and 1 that the columns of categories become, the last ones."""
        return len(self.categories) * self.most_categories

    def widened(self, columns: int) -> int:
        """Return the number of columns after those of categories have become columns of 0 and 1."""
        return columns - len(self.categories) + self.slots


class ViewsConfig(Section):
    """Settings of random views of images."""

    area: tuple[PositiveShare, PositiveShare] = (0.5, 1.0)
    """Range of the crop's share of the image's area."""
    ratio: tuple[PositiveNumber, PositiveNumber] = (3 / 4, 4 / 3)
    """Range of the crop's width over its height."""
    rotation: Weight = 10.0
    """Largest rotation in either direction, in degrees."""
    blur: tuple[Weight, Weight] = (0.1, 2.0)
    """Range of the Gaussian blur's standard deviation, in pixels."""
    blur_probability: Share = 0.5
    """Probability that a view is blurred."""
    flip_probability: Share = 0.0
    """Probability that a view is mirrored."""

    def unused(self) -> Unused:
        """Yield ``blur`` if its probability is 0; it then has no effect."""
        if self.blur_probability == 0:
            yield "views.blur", require_other("views.blur_probability", 0)

    @model_validator(mode="after")
    def _ranges_ascend(self) -> "ViewsConfig":
        for name in ("area", "ratio", "blur"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"views.{name} = [{low:g}, {high:g}]: the range must ascend")
        return self


class AffineViewsConfig(Section):
    """Settings of random affine views of images: one view of each image in each step."""

    rotation: Weight = 15.0
    """Largest rotation in either direction, in degrees."""
    scale: Weight = 0.2
    """Largest absolute logarithm of the magnification; for the aspect ratio, half as much."""
    shear: Weight = 0.2
    """Largest shear in either direction."""
    shift: Weight = 0.1
    """Largest shift in either direction, as a share of half the width."""
    flip_probability: Share = 0.0
    """Probability that a view is mirrored."""

    @model_validator(mode="after")
    def _images_stay_visible(self) -> "AffineViewsConfig":
        if self.scale > 3:
            raise ValueError(
                f"affine.scale = {self.scale:g} is refused: images would shrink to a point or grow "
                "beyond their frame; give at most 3"
            )
        return self


class IntensityViewsConfig(Section):
    """Settings of random changes of intensity and colour, after the affine view; 0 turns one off.

    A factor is given by the largest absolute value of its natural logarithm.
    """

    gamma: Amount = 0.0
    """Change of the power that intensities are raised to."""
    brightness: Amount = 0.0
    """Change of the factor of all intensities."""
    contrast: Amount = 0.0
    """Change of the factor of deviations from the image's mean."""
    saturation: Amount = 0.0
    """Change of the factor of deviations from grey; this and the next two are for colour images."""
    tint: Amount = 0.0
    """Change of the factor of each colour."""
    grey_probability: Share = 0.0
    """Probability that a view of a colour image is grey."""
    erase: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Longest side of a rectangle that is set to 0, as a share of the image's side."""


class PartitionConfig(Section):
    """Settings of the partition of images among clients."""

    kind: str
    """Division of the images among clients."""
    clients: Positive | None = None
    """Number of clients; by default one for each class or folder; for classification 10, or one for
    each folder."""

    @property
    def degree(self) -> dict[str, float | str]:
        """The setting that controls the skew between clients, as {key: value}; {} without one.

        Infinity is a text, since JSON has no such number.
        """
        return {}

    @property
    def in_words(self) -> str:
        """The kind of partition and its degree, in words."""
        degree = (f"{name} = {float(value):g}" for name, value in self.degree.items())
        return ", ".join([self.kind, *degree])


class ClassesPartition(PartitionConfig):
    """Settings of a partition in which each client has a fixed number of classes."""

    kind: Literal["classes"] = "classes"
    classes_per_client: Positive = 2
    """Number of classes of each client; if there are enough classes, no two clients share one."""

    @property
    def degree(self) -> dict[str, float | str]:
        """The number of classes of each client, as {key: value}."""
        return {"classes_per_client": self.classes_per_client}

    @property
    def in_words(self) -> str:
        """The number of classes of each client, in words."""
        return f"{self.classes_per_client} classes a client"


class DirichletPartition(PartitionConfig):
    """Settings of a partition that draws clients' shares of each class from Dir(alpha)."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Annotated[float, Field(gt=0)] = 0.5
    """Concentration of a Dirichlet partition: the smaller, the more clients differ; ``inf`` is
    ``iid``."""
    min_samples: Positive = 10
    """Minimum number of samples of each client; shares are drawn again until all have it."""

    @property
    def degree(self) -> dict[str, float | str]:
        """The concentration alpha, as {key: value}; infinity is the text "inf"."""
        return {"alpha": self.alpha if self.alpha != math.inf else "inf"}


class AvailabilityConfig(Section):
    """Settings of device failures and client sampling."""

    disconnection_rate: Share = 0.0
    """Share of the clients that are absent for the whole run, rounded to whole clients."""
    dropout_rate: BelowOne = 0.0
    """Probability that a client is absent from one round."""
    sample_fraction: PositiveShare = 1.0
    """Share of the connected clients that the server invites in a round."""
    without: tuple[Count, ...] = ()
    """Numbers of clients that never take part, as ``ccfcpp forget`` sets them."""
    late: tuple[Count, ...] = ()
    """Numbers of clients that join after the start."""
    late_rounds: Annotated[Positive, Affects("who takes part in which round")] = 1
    """Number of rounds that late clients miss; then they take part."""

    def unused(self) -> Unused:
        """Yield ``late_rounds`` if no client is late."""
        if not self.late:
            yield "availability.late_rounds", require_other("availability.late", [])

    @property
    def is_perfect(self) -> bool:
        """Whether all clients take part in all rounds."""
        return not (self.disconnection_rate or self.varies or self.without or self.late)

    @property
    def varies(self) -> bool:
        """Whether the clients that take part may differ from round to round."""
        return self.dropout_rate > 0 or self.sample_fraction < 1


class PrecisionConfig(Section):
    """Settings of the precision of networks' arithmetic; results differ by rounding at most."""

    precision: Literal["auto", "float32", "tf32", "bfloat16"] = "float32"
    """Precision of matrix products in networks: ``tf32`` rounds their inputs, and needs CUDA;
    ``bfloat16`` rounds inputs and results; ``auto`` is ``bfloat16`` on a device with instructions
    for it, and ``float32`` elsewhere."""


class ComputeConfig(PrecisionConfig):
    """Settings of precision and parallel training if each client trains by itself."""

    cohort: Annotated[Literal["auto"] | Positive, Affects("the machine")] = "auto"
    """Largest number of clients that are trained side by side; ``auto``: on a processor one for
    each thread, on a GPU as many as fit into memory."""

    @field_validator("cohort", mode="before")
    @classmethod
    def _cohort_is_auto_or_a_number(cls, value: object) -> object:
        # Else the complaint would be about one of the two types alone.
        if value != "auto" and not re.fullmatch("0*[1-9][0-9]{0,5}", str(value)):
            raise UsageError(
                KeyValue("compute.cohort", value),
                " is refused: it should be auto or a number of clients, 1 at least",
            )
        return value


def fits_always(config: object) -> None:
    """Accept any configuration, for methods that have no check of their own."""


def all_used(config: object) -> Unused:
    """Yield nothing, for methods whose settings always have an effect."""
    yield from ()


class ConfigOfMethod(Protocol):
    """Interface of a method, as far as a configuration depends on it."""

    @property
    def sections(self) -> Mapping[str, type[Section]]:
        """The method's own sections by name, besides those of every run."""

    @property
    def fixed(self) -> Tree:
        """Settings that the method's name implies, as a nested dictionary."""

    @property
    def ignores(self) -> Sequence[str]:
        """Keys of shared sections that have no effect on this method."""

    @property
    def unused(self) -> Callable[[Any], Unused]:
        """A function that yields settings without effect, besides those that sections yield."""

    @property
    def check(self) -> Callable[[Any], None]:
        """A function that raises ``ValueError`` if a configuration does not fit the method."""


class RunConfig(Section):
    """Settings of every run; a method adds sections."""

    dataset: Annotated[str, Field(min_length=1)] = "digits"
    """Name of a data set, or path of an image folder, an archive of one, or an ``.npz`` file. To
    cluster, also path of vectors: ``.npy``, ``.npz``, ``.csv``, ``.parquet``, or a folder of
    these."""
    seed: int = 0
    """Seed of all random numbers."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Affects("the machine")] = "auto"
    """Device of the computation; ``auto`` is a GPU if there is one."""
    evaluate_every: Positive | None = None
    """Score the global model every N rounds; classification also after the last round. If null,
    after each round; in Fed-SCAN's steps only after those that find neighbours again, and the
    last."""
    track: Annotated[Literal["none", "tensorboard", "mlflow"], Affects("files")] = "none"
    """Also log the rounds with one of these, which are extras to install."""
    availability: AvailabilityConfig = AvailabilityConfig()
    method: str

    @classmethod
    def keys_of_rounds(cls, tree: Mapping[str, object]) -> tuple[str, str]:
        """Return the keys of the number of rounds and of steps per round, of ``tree``'s method.

        A key is "" if the method has no such setting.
        """
        return "", ""

    @classmethod
    def methods(cls) -> "Registry[ConfigOfMethod]":
        """Return all methods by name; each subclass has its own."""
        raise NotImplementedError

    @classmethod
    def kind_for(cls, tree: Mapping[str, object]) -> type[Self]:
        """Return this class with the sections of the method that the settings ``tree`` name."""
        name, default = str(tree.get("method")), str(cls.model_fields["method"].default)
        found = _with_sections(cls._declared(), name if name in cls.methods() else default)
        return cast(type[Self], found)

    @classmethod
    def fields_with(cls, method: str) -> dict[str, FieldInfo]:
        """Return the fields of a method's configuration and of its sections, by dotted key."""
        own = cls.methods()[method].sections.items()
        sections = (
            {f"{name}.{key}": f for key, f in fields_of(kind).items()} for name, kind in own
        )
        return functools.reduce(operator.or_, sections, fields_of(cls._declared()))

    @classmethod
    def known_fields(cls, tree: Mapping[str, object]) -> dict[str, FieldInfo]:
        """Return the fields of our methods and of the one that ``tree`` names, by dotted key.

        If ``tree`` has other sections, those of all installed packages' methods are returned, too.
        """
        # The flagship's sections come first, the baselines' behind them.
        named = {str(tree.get("method"))} & cls.methods().keys()
        usual = [*reversed(cls.methods().own()), *named]
        fields = functools.reduce(operator.or_, map(cls.fields_with, usual))
        if {key.partition(".")[0] for key in fields} >= tree.keys() - {"rounds"}:
            return fields
        for method in sorted(cls.methods().keys() - set(usual)):
            with suppress(UsageError):  # A broken package concerns only those who name its method.
                fields |= cls.fields_with(method)
        return fields

    @classmethod
    def fixed_by(cls, tree: Mapping[str, object]) -> Tree:
        """Return the values that the method named in ``tree`` fixes; {} if it names none."""
        methods, name = cls.methods(), str(tree.get("method"))
        return methods[name].fixed if name in methods else {}

    def section(self, kind: type[S]) -> S:
        """Return the section of class ``kind``; without one, an instance with default values."""
        for name in type(self).model_fields:
            if isinstance(section := getattr(self, name), kind):
                return section
        return kind()

    def unused(self) -> Unused:
        """Yield (key, needs) of all settings without effect, as ``Section.unused`` does."""
        for name in type(self).model_fields:
            if isinstance(section := getattr(self, name), Section):
                yield from section.unused()
        method = self.methods()[self.method]
        yield from ((key, ()) for key in method.ignores)
        yield from method.unused(self)

    @field_validator("method")
    @classmethod
    def _method_is_known(cls, value: str) -> str:
        known = list(cls.methods())
        if value not in known:
            # A p is often typed for a +, as in the name of this package.
            typed = {name.replace("+", "p"): name for name in known}
            given = value.lower().replace("+", "p")
            near = difflib.get_close_matches(given, typed, n=1, cutoff=_SIMILAR)
            hint = f"did you mean {typed[near[0]]!r}? Known: " if near else "it should be one of "
            raise UsageError(KeyValue("method", value), f" is refused: {hint}{', '.join(known)}")
        return value

    @model_validator(mode="after")
    def _method_fits(self) -> Self:
        self.methods()[self.method].check(self)
        return self

    @classmethod
    def _declared(cls) -> "type[RunConfig]":
        """Return the class as declared in a module, without the sections added at run time."""
        return cls if cls.__base__ is RunConfig else cls.__mro__[1]

    def __reduce__(self) -> tuple[object, ...]:
        # Another process makes the class with its sections again.
        return _restored, (self._declared(), self.model_dump(mode="json"))


@functools.cache
def _with_sections(base: type[RunConfig], method: str) -> type[RunConfig]:
    """Make a subclass of a configuration class that also has the sections of a method."""
    sections = base.methods()[method].sections
    for name in sections:
        if name in base.model_fields and method not in base.methods().own():
            raise UsageError(
                f"method {method!r} brings a section {name!r} of the configuration, and there is "
                "another one of that name: its package must give it another name"
            )
    fields: dict[str, Any] = {name: (kind, kind()) for name, kind in sections.items()}
    return create_model(base.__name__, __base__=base, __doc__=base.__doc__, **fields)


def _restored(base: type[RunConfig], values: Tree) -> RunConfig:
    return base.kind_for(values).model_validate(values)
