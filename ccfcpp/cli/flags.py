"""The flags that stand for a key of the configuration: one table for all commands.

A flag's value is text, which the configuration checks as it checks a file's: there is one rule for
each key. Its help shows the default, which is the preset's for the default data set.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import flatten, preset
from ccfcpp.core.errors import UsageError
from ccfcpp.data.registry import DATASETS
from ccfcpp.studies.comparing import ALL_SKEWS
from supervised.classifiers import CLASSIFIERS

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Named = dict[str, Any]
"""Values of the flags that were given, by dotted key."""
Command = Callable[..., None]


@dataclass(frozen=True)
class Flag:
    """A flag, and the key that it sets.

    Attributes:
        key: The dotted key of the configuration.
        metavar: What stands for its value in the help; empty for a switch, which sets its key to
            true.
        named: What it is called, where that is not the last part of its key.
        unset: What holds where the configuration says nothing.
        default: What holds without it, where that is not the configuration's value.
        several: Whether it takes a list with commas, each value of which is run.
        panel: Its title in the help; else that of the systems that have it.
    """

    key: str
    help: str
    metavar: str = ""
    named: str = ""
    unset: str = "none"
    default: str = ""
    several: bool = False
    panel: str = ""

    @property
    def option(self) -> str:
        """The flag, as one types it."""
        return "--" + (self.named or self.key.rpartition(".")[2]).replace("_", "-")

    @property
    def name(self) -> str:
        """The name of its parameter."""
        return "flag_" + self.option.removeprefix("--").replace("-", "_")

    def read(self, value: object) -> object:
        """Return the value, or the different values of a list with commas.

        Raises:
            UsageError: One of them is empty.
        """
        if not (self.several and isinstance(value, str) and "," in value):
            return value
        values = list(dict.fromkeys(part.strip() for part in value.split(",")))
        if "" in values:
            raise UsageError(
                f"{self.option} {value!r} holds an empty value: give a list such as a,b"
            )
        return values

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter of a command."""
        metavar, panel = self.metavar or None, self.panel or _ALL
        option = typer.Option(self.option, metavar=metavar, help=self.help, rich_help_panel=panel)
        annotation = Annotated[str | None, option] if metavar else Annotated[bool | None, option]
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, keyword, default=None, annotation=annotation)


def _titled(panel: str, *flags: Flag) -> tuple[Flag, ...]:
    return tuple(replace(flag, panel=panel) for flag in flags)


_ALL = "All systems"
_SYSTEMS, _CLASSIFIERS, _DATASETS = ", ".join(METHODS), ", ".join(CLASSIFIERS), ", ".join(DATASETS)
_IMAGES = (
    f"One of {_DATASETS}; or an image folder, an archive of one, or an .npz file; or vectors: "
    ".npy, .npz, .csv, .parquet, or a folder of these with a file for each client."
)
_FOLDERS = "skew, classes, dirichlet, iid, or folders (each folder, or file of vectors, a client)."
_SKEW = "Degree of skew, 0 (random) to 1 (one class a client)."
BY_FOLDER = ("folders", "domain")
"""The kinds of partition in which each folder is a client, of clustering and classification."""

DATASET = Flag("dataset", _IMAGES, "NAME|PATH")
CLUSTERING_METHOD = Flag("method", f"One of {_SYSTEMS}.", "NAME")
CLASSIFICATION_METHOD = Flag("method", f"One of {_CLASSIFIERS}.", "NAME")
ANY_METHOD = Flag("method", f"One of {_SYSTEMS}; to classify, one of {_CLASSIFIERS}.", "NAME")
COMPARED_METHODS = Flag(
    "method", f"Of {_SYSTEMS}.", "A,B,…", "methods", default="all", several=True
)
PRESET = Flag(
    "preset",
    "default; or published: CCFC and CCFC++ with the phases of their papers and code.",
    "NAME",
)
PARTITION = Flag("partition.kind", _FOLDERS, "KIND", "partition")
LABEL_PARTITION = replace(PARTITION, help="iid, or domain (each folder is a client).")
INSPECTED_PARTITION = Flag(
    "partition.kind", "folders, where each folder is a client.", "KIND", "partition", default="none"
)
EMBEDDED_PARTITION = replace(
    INSPECTED_PARTITION, help="folders, where each folder, or file of texts, is a client."
)
SKEW = Flag("partition.p", _SKEW, "P")
SKEWS = Flag(
    "partition.p",
    "Degrees of skew.",
    "P,Q,…",
    default=",".join(f"{p:g}" for p in ALL_SKEWS),
    several=True,
)
ALPHA = Flag("partition.alpha", "Dirichlet partition with this concentration; or inf.", "A")
CLASSES_PER_CLIENT = Flag(
    "partition.classes_per_client", "Partition in which a client holds M classes.", "M"
)
CLIENTS = Flag("partition.clients", "Number of clients.", "M", unset="one for each class or folder")
TEN_CLIENTS = replace(CLIENTS, unset="10, or one for each folder")
CLUSTERS = Flag(
    "clusters",
    "Number of clusters k; auto, or a range such as 5-30, where nobody knows it.",
    "K|auto",
    unset="the number of classes",
)
ROUNDS = Flag("rounds", "Rounds; of CCFC and CCFC++ those after pre-training.", "R")
"""Its key is the system's own one."""
TRAINING_ROUNDS = Flag("training.rounds", "Rounds.", "R")
PRETRAIN_ROUNDS = Flag("training.pretrain_rounds", "Pre-training rounds.", "R")
LOCAL_EPOCHS = Flag("training.local_epochs", "Local epochs of a round.", "E")
ETA = Flag("loss.eta", "Weight of the decorrelation term.", "E")
LAM = Flag("loss.lam", "Weight of the model-contrastive term.", "L")
DECORR = Flag("decorrelation.kind", "feddecorr, decov, structured-decov or none.", "KIND", "decorr")
BETA = Flag("decorrelation.beta", "Weight of the decorrelation term.", "B")
MODEL = Flag(
    "model.name", "small, mobilenetv2, resnet18, resnet20, resnet32 or alexnet.", "NAME", "model"
)
SEED = Flag("seed", "Seed of all random numbers.", "S")
TRACK = Flag("track", "Log the rounds for tensorboard or mlflow too (extras).", "NAME")
ABSENCE = _titled(
    "Absent clients",
    Flag("availability.sample_fraction", "Share of the clients that are invited to a round.", "F"),
    Flag("availability.disconnection_rate", "Share of clients absent for the whole run.", "F"),
    Flag("availability.dropout_rate", "Probability that a client misses a round.", "F"),
)
PRIVACY = _titled(
    "Privacy",
    Flag("privacy.secure_sums", "The server learns sums over clients alone (an extra)."),
    Flag(
        "privacy.level",
        "Differential privacy: none, client or image (an extra).",
        "LEVEL",
        "privacy",
    ),
    Flag("privacy.epsilon", "Budget of differential privacy.", "E"),
    Flag("privacy.reproducible_noise", "Draw the noise from the seed: it then protects nothing."),
)
VECTORS = _titled(
    "Vectors",
    Flag("vectors.label_column", "Column with classes, for scores alone.", "NAME"),
    Flag("vectors.client_column", "Column that says which client holds a row.", "NAME"),
    Flag("vectors.missing", "refuse; or mean: values become their column's pooled mean.", "RULE"),
    Flag(
        "vectors.scale",
        "none; standard (columns to mean 0 and variance 1, pooled); or unit (rows to length 1).",
        "KIND",
        default="standard",
    ),
    Flag("vectors.components", "Project on D pooled principal components.", "D"),
    Flag(
        "data.encoder",
        "Pre-trained encoder that makes vectors of photos or texts: torchvision:NAME or timm:NAME, "
        "maybe @FILE.safetensors; sentence-transformers:NAME or its folder; FILE.onnx or .pt.",
        "NAME|FILE",
    ),
    Flag("vectors.text_column", "Column with texts, for an encoder of texts.", "NAME"),
)
HOSTILITY = _titled(
    "Hostile clients",
    Flag(
        "attack.kind",
        "What some clients send in place of the truth, to measure its effect: none, sign-flip, "
        "scaled, noise, constant, false-sizes or one-point.",
        "NAME",
        "attack",
    ),
    Flag("attack.attackers", "Share of the clients that do so.", "F"),
    Flag(
        "defence.rule",
        "What the server does against them: none, bound, trimmed-mean, median, geometric-median, "
        "krum or multi-krum.",
        "NAME",
        "defence",
    ),
)
IMAGES = _titled(
    "Your own images",
    Flag(
        "data.window",
        "In files of more than 8 bits, the values that become black and white, such as 0,4095.",
        "LOW,HIGH",
        unset="DICOM's own window, or else each image's smallest and largest value",
    ),
    Flag(
        "data.skip",
        "Share of the files that may be unreadable and are left out, such as 5%; at least one may.",
        "SHARE",
        default="1%",
    ),
)
MACHINE = DEVICE, _, DATA_ROOT = _titled(
    "Machine",
    Flag("device", "auto, cpu or cuda.", "NAME"),
    Flag("compute.cohort", "Clients that are trained side by side.", "N"),
    Flag("data.root", "Folder of the data sets.", "PATH", "data-root", "$CCFCPP_DATA, or a cache"),
)


CLIENT_COLUMN, ENCODER = VECTORS[1], VECTORS[5]
COLUMNS = (*VECTORS[:2], VECTORS[6])
"""What columns of a table are: of classes, clients and texts."""


def give_parameters(command: Command, own: Iterable[inspect.Parameter]) -> None:
    """Let typer see parameters by keyword in a command that takes any."""
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}


def keyed(*flags: Flag) -> Callable[[Command], Command]:
    """Give a command some flags of the table, before its own, and their values as ``named``.

    Where a setting of a flag is refused, the message names the flag and not the key behind it.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(**given: object) -> None:
            values = {flag: given.pop(flag.name) for flag in flags}
            # Without a switch, a file may ask for what it does.
            typed = {flag: value for flag, value in values.items() if value not in (None, False)}
            named = {flag.key: flag.read(value) for flag, value in typed.items()}
            try:
                command(named=named, **given)
            except UsageError as error:
                known, own = ({flag.key: flag.option for flag in some} for some in (flags, typed))
                raise UsageError(error.by_flags(own, known)) from error

        own = dict(inspect.signature(command, eval_str=True).parameters)
        del own["named"]
        give_parameters(wrapper, [*(flag.parameter for flag in flags), *own.values()])
        wrapper.table = flags  # type: ignore[attr-defined] # for the help
        return wrapper

    return decorate


def several(*flags: Flag) -> tuple[Flag, ...]:
    """The same flags where a command takes more than one value, with commas."""
    return tuple(replace(flag, metavar=f"{flag.metavar},…", several=True) for flag in flags)


def name_partition(named: Named) -> None:
    """Let a flag that belongs to a kind of partition name that kind.

    Raises:
        UsageError: Flags name different kinds.
    """
    of_one_kind = {ALPHA: "dirichlet", CLASSES_PER_CLIENT: "classes", CLIENT_COLUMN: "folders"}
    kinds = {flag.option: kind for flag, kind in of_one_kind.items() if flag.key in named}
    if PARTITION.key in named:
        kinds[PARTITION.option] = named[PARTITION.key]
    if len(set(kinds.values())) > 1:
        raise UsageError(f"{' and '.join(kinds)} each name a partition: give one of them")
    if kinds:
        named[PARTITION.key] = next(iter(kinds.values()))


def showing_defaults(
    presets: str,
    known: Callable[[], Mapping[str, FieldInfo]],
    *flags: Flag,
    base: Tree | None = None,
) -> type[TyperCommand]:
    """Make the class of a command whose help shows its flags' defaults and systems.

    They are those of the data sets' presets in a folder, with what the command lays over them. The
    fields of configurations are asked for only where the help is.
    """
    by_name = {flag.name: flag for flag in flags}

    class Command(TyperCommand):
        def get_help(self, ctx: Any) -> str:
            found = _defaults(presets, known()) | dict(flatten(base or {}))
            for option in self.params:
                if isinstance(option, TyperOption) and (flag := by_name.get(option.name or "")):
                    option.help = f"{flag.help} (default: {_default(flag, found)})"
                    option.rich_help_panel = flag.panel or _having(flag, str(found["method"]))
            return super().get_help(ctx)

    return Command


def _having(flag: Flag, method: str) -> str:
    """The titles of the systems that have a flag, where not all of them do."""
    if method not in METHODS:
        return "All methods"
    section = flag.key.partition(".")[0]
    having = [
        system.title
        for system in METHODS.values()
        if (system.rounds if flag is ROUNDS else section in system.sections)
    ]
    return ", ".join(having) or _ALL


def _defaults(presets: str, known: Mapping[str, FieldInfo]) -> dict[str, object]:
    """What holds for the default data set, by dotted key."""
    values = {key: field.default for key, field in known.items()}
    found = values | dict(flatten(preset(presets, str(values["dataset"]))))
    system = METHODS.get(str(found["method"]))
    if system is not None and system.rounds:
        steps, in_round = found[system.rounds], found.get(system.round_steps, 1)
        assert isinstance(steps, int)
        assert isinstance(in_round, int)
        found[ROUNDS.key] = -(-steps // in_round)
    return found


def _default(flag: Flag, found: Mapping[str, object]) -> str:
    value = flag.default or found.get(flag.key)
    if value is None:
        return flag.unset
    return "off" if value is False else str(value)
