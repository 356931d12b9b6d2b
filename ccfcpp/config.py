"""The configuration: every choice of a run, its range and its default.

The defaults are the CCFC authors' choices for MNIST. A run's configuration is made of layers, each
over the one before: these defaults, the data set's preset, a file given by the user, and single
values given by the user. A layer that names a method brings what the method fixes.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ccfcpp.errors import UsageError

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tree = dict[str, Any]
C = TypeVar("C", bound=BaseModel)


class Section(BaseModel):
    """A part of the configuration: fixed once made, and without unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """Where the images come from."""

    root: str | None = None
    """Folder of the data sets; ``$CCFCPP_DATA`` where it is null."""
    image_size: Positive | None = None
    """Resize images to this many pixels a side."""


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
    batch_size: Annotated[int, Field(ge=2)] = 128
    learning_rate: PositiveNumber = 1e-3
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


class ClusterConfig(Section):
    """All of ``ccfcpp cluster``."""

    method: Literal["ccfc", "ccfc++"] = "ccfc++"
    """``ccfc`` is ``ccfc++`` without the decorrelation term."""
    dataset: str = "digits"
    """A data set's name, or a path to an image folder or an ``.npz`` file."""
    clusters: Positive | None = None
    """Number of clusters k; the number of classes where it is null."""
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    evaluate_every: Positive = 1
    """Score the global model after each so many rounds."""
    data: DataConfig = DataConfig()
    partition: PartitionConfig = PartitionConfig()
    availability: AvailabilityConfig = AvailabilityConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    loss: LossConfig = LossConfig()
    centroids: CentroidConfig = CentroidConfig()
    views: ViewsConfig = ViewsConfig()

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


METHOD_LAYERS: dict[str, Tree] = {
    "ccfc": {"loss": {"eta": 0.0, "pretrain_eta": 0.0}},
    "ccfc++": {},
}
"""What a method fixes."""


def resolve_cluster_config(file: Tree, values: Tree) -> ClusterConfig:
    """Put the layers together.

    Args:
        file: What the user's file holds.
        values: What the user gave as single values.

    Raises:
        UsageError: A key is unknown or a value is out of its range.
    """
    dataset = values.get("dataset", file.get("dataset", "digits"))
    tree: Tree = {}
    for layer in (preset(str(dataset)), file, values):
        # What a method fixes lies right under the layer that names it.
        tree = merge(tree, METHOD_LAYERS.get(str(layer.get("method")), {}))
        tree = merge(tree, layer)
    return validate(ClusterConfig, tree)


def preset_folder() -> Path:
    """Where the presets lie: in the installed package, or beside it in a source tree."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def preset(dataset: str) -> Tree:
    """The preset of a data set; for a path, the one for a user's own images."""
    named = preset_folder() / f"{dataset}.yaml"
    if "/" not in dataset and named.is_file():
        return read_yaml(named)
    return read_yaml(preset_folder() / "images.yaml") | {"dataset": dataset}


def read_yaml(path: Path) -> Tree:
    """Read a YAML file that holds a mapping.

    Raises:
        UsageError: There is no such file, or it is not YAML, or not a mapping.
    """
    try:
        tree = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"configuration {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"configuration {path} is not valid YAML: {reason}") from error
    if tree is not None and not isinstance(tree, dict):
        raise UsageError(f"configuration {path} must hold keys and values, such as 'seed: 0'")
    return tree or {}


def parse_assignments(assignments: Iterable[str]) -> Tree:
    """Turn ``a.b=c`` into ``{a: {b: c}}``, the value read as YAML.

    Raises:
        UsageError: An assignment is not of that form.
    """
    tree: Tree = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {assignment} is not of the form key=value, such as loss.lam=0")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {assignment}: {text!r} is not a YAML value") from error
        tree = merge(tree, nest(key, value))
    return tree


def nest(key: str, value: object) -> Tree:
    """Turn the dotted key ``a.b`` into ``{a: {b: value}}``."""
    for part in reversed(key.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> Tree:
    """Lay one tree over another."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their dotted keys."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def validate(kind: type[C], tree: Tree) -> C:
    """Make a configuration of a tree.

    Raises:
        UsageError: In one line, the first key or value that does not fit, and what would.
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            _complaint(kind, key, first["type"], first["msg"], first["input"])
        ) from None


def _complaint(kind: type[BaseModel], key: str, rule: str, message: str, value: object) -> str:
    if rule == "extra_forbidden":
        return f"unknown key {key!r}: did you mean {_nearest_key(kind, key)!r}?"
    if rule == "value_error":
        return message.removeprefix("Value error, ")
    return f"{key} = {value} is refused: {message.replace('Input', 'it', 1)}"


def _nearest_key(kind: type[BaseModel], key: str) -> str:
    known = [name for name, _ in flatten(kind().model_dump())]
    leaf = key.rpartition(".")[2]
    return max(known, key=lambda name: _likeness(key, name) + _likeness(leaf, name.split(".")[-1]))


def _likeness(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second).ratio()


def dump_yaml(config: BaseModel) -> str:
    """The configuration as YAML, every key written out."""
    text: str = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    return text


def differing_keys(first: BaseModel, second: BaseModel) -> list[str]:
    """Dotted keys whose values differ between two configurations of one kind."""
    left, right = (dict(flatten(c.model_dump(mode="json"))) for c in (first, second))
    return sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
