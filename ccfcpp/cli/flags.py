"""The flags that stand for a key of the configuration: one table for all commands.

A flag's value is text, which the configuration checks as it checks a file's: there is one rule for
each key. Its help shows the default, which is the preset's for the default data set.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import flatten, preset
from ccfcpp.core.errors import UsageError
from ccfcpp.data.registry import DATASETS
from ccfcpp.runs.pipeline import Rounds
from supervised.classifiers import CLASSIFIERS

Named = dict[str, Any]
"""Values of flags by dotted key; None for a flag that was not given."""
Command = Callable[..., None]


@dataclass(frozen=True)
class Flag:
    """A flag, and the key that it sets.

    Attributes:
        option: The flag, as one types it.
        key: The dotted key of the configuration.
        help: What it is.
        metavar: What stands for its value in the help.
        unset: What holds where the configuration says nothing.
        switch: Whether it takes no value, and sets its key to true.
        takes_several: Whether it takes a list with commas, each value of which is run.
        panel: The title in the help of what it belongs to; empty for what all systems have, or for
            the systems whose section of the configuration its key is in.
        default: What holds without it, where that is not the configuration's value.
    """

    option: str
    key: str
    help: str
    metavar: str = "TEXT"
    unset: str = "none"
    switch: bool = False
    takes_several: bool = False
    panel: str = ""
    default: str = ""

    @property
    def name(self) -> str:
        """Of the parameter."""
        return "flag_" + self.option.removeprefix("--").replace("-", "_")

    @property
    def parameter(self) -> inspect.Parameter:
        """For a command's signature."""
        option = typer.Option(
            self.option,
            metavar=None if self.switch else self.metavar,
            help=self.help,
            rich_help_panel=self.panel or _ALL,
        )
        annotation = (
            Annotated[bool | None, option] if self.switch else Annotated[str | None, option]
        )
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )


_ALL = "All systems"
_SYSTEMS = ", ".join(METHODS)
_CLASSIFIERS = ", ".join(CLASSIFIERS)
_DATASETS = ", ".join(DATASETS)

CLUSTERING_METHOD = Flag("--method", "method", f"One of {_SYSTEMS}.", "NAME")
PRESET = Flag(
    "--preset",
    "preset",
    "default; or published: CCFC and CCFC++ as in their papers and code.",
    "NAME",
)
CLASSIFICATION_METHOD = Flag("--method", "method", f"One of {_CLASSIFIERS}.", "NAME")
ANY_METHOD = Flag(
    "--method", "method", f"One of {_SYSTEMS}; to classify, one of {_CLASSIFIERS}.", "NAME"
)
DATASET = Flag(
    "--dataset",
    "dataset",
    f"One of {_DATASETS}; or an image folder, an archive of one, or an .npz file.",
    "NAME|PATH",
)
PARTITION = Flag(
    "--partition",
    "partition.kind",
    "skew, dirichlet, iid, or folders (each folder is a client).",
    "KIND",
)
SKEW = Flag("--p", "partition.p", "Degree of skew, 0 (random) to 1 (one class a client).", "P")
ALL_SKEWS = ("0", "0.25", "0.5", "0.75", "1")
SKEWS = Flag("--p", "partition.p", "Degrees of skew.", "P,Q,…", default=",".join(ALL_SKEWS))
COMPARED_METHODS = Flag("--methods", "method", f"Of {_SYSTEMS}.", "A,B,…", default="all")
ALPHA = Flag(
    "--alpha", "partition.alpha", "Dirichlet partition with this concentration; or inf.", "A"
)
CLASSES_PER_CLIENT = Flag(
    "--classes-per-client",
    "partition.classes_per_client",
    "Pathological partition: M classes a client.",
    "M",
)
LABEL_PARTITION = Flag(
    "--partition", "partition.kind", "iid, or domain (each folder is a client).", "KIND"
)
CLIENTS = Flag(
    "--clients", "partition.clients", "Number of clients.", "M", "one for each class or folder"
)
TEN_CLIENTS = Flag(
    "--clients", "partition.clients", "Number of clients.", "M", "10, or one for each folder"
)
CLUSTERS = Flag("--clusters", "clusters", "Number of clusters k.", "K", "the number of classes")
ROUNDS = Flag("--rounds", "rounds", "Rounds; of CCFC and CCFC++ those after pre-training.", "R")
"""Its key is the system's own one."""
TRAINING_ROUNDS = Flag("--rounds", "training.rounds", "Rounds.", "R")
PRETRAIN_ROUNDS = Flag("--pretrain-rounds", "training.pretrain_rounds", "Pre-training rounds.", "R")
LOCAL_EPOCHS = Flag("--local-epochs", "training.local_epochs", "Local epochs of a round.", "E")
ETA = Flag("--eta", "loss.eta", "Weight of the decorrelation term.", "E")
LAM = Flag("--lam", "loss.lam", "Weight of the model-contrastive term.", "L")
DECORR = Flag(
    "--decorr", "decorrelation.kind", "feddecorr, decov, structured-decov or none.", "KIND"
)
BETA = Flag("--beta", "decorrelation.beta", "Weight of the decorrelation term.", "B")
MODEL = Flag(
    "--model", "model.name", "small, mobilenetv2, resnet18, resnet20, resnet32 or alexnet.", "NAME"
)
SEED = Flag("--seed", "seed", "Seed of all random numbers.", "S")
TENSORBOARD = Flag(
    "--tensorboard", "tensorboard", "Log the rounds for TensorBoard too (an extra).", switch=True
)


def _titled(panel: str, *flags: Flag) -> tuple[Flag, ...]:
    return tuple(replace(flag, panel=panel) for flag in flags)


ABSENCE = _titled(
    "Absent clients",
    Flag(
        "--sample-fraction",
        "availability.sample_fraction",
        "Share of the clients that the server invites in a round.",
        "F",
    ),
    Flag(
        "--disconnection-rate",
        "availability.disconnection_rate",
        "Share of the clients absent for the whole run.",
        "F",
    ),
    Flag(
        "--dropout-rate",
        "availability.dropout_rate",
        "Probability that a client is absent from a round.",
        "F",
    ),
)
"""Which clients are there."""
PRIVACY = _titled(
    "Privacy",
    Flag(
        "--secure-sums",
        "privacy.secure_sums",
        "The server learns sums over clients, and no client's part (an extra).",
        switch=True,
    ),
    Flag(
        "--privacy",
        "privacy.level",
        "Differential privacy: none, client or image (an extra).",
        "LEVEL",
    ),
    Flag("--epsilon", "privacy.epsilon", "Budget of differential privacy.", "E"),
    Flag(
        "--reproducible-noise",
        "privacy.reproducible_noise",
        "Draw privacy's noise from the seed: it then protects nothing.",
        switch=True,
    ),
)
"""What is protected beside the images, which stay where they are."""
HOSTILITY = _titled(
    "Hostile clients",
    Flag(
        "--attack",
        "attack.kind",
        "Let some clients send something false, to measure its effect: sign-flip, scaled, noise, "
        "constant, false-sizes or one-point.",
        "NAME",
    ),
    Flag("--attackers", "attack.attackers", "Share of the clients that do so.", "F"),
    Flag(
        "--defence",
        "defence.rule",
        "What the server does against such: none, bound, trimmed-mean, median, geometric-median, "
        "krum or multi-krum.",
        "NAME",
    ),
)
"""Clients that send something false."""
MACHINE = DEVICE, COHORT, DATA_ROOT = _titled(
    "Machine",
    Flag("--device", "device", "auto, cpu or cuda.", "NAME"),
    Flag("--cohort", "compute.cohort", "Clients that are trained side by side.", "N"),
    Flag(
        "--data-root", "data.root", "Folder of the data sets.", "PATH", "$CCFCPP_DATA, or a cache"
    ),
)
"""Where a run takes place."""


def keyed(*flags: Flag) -> Callable[[Command], Command]:
    """Give a command some flags of the table, before its own.

    Where a setting of a flag is refused, the message names the flag and not the key behind it.

    Args:
        flags: The flags. The command gets their values as its argument ``named``.
    """

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        parameters = [flag.parameter for flag in flags]
        parameters += [each for name, each in own.items() if name != "named"]

        @functools.wraps(command)
        def wrapper(**given: object) -> None:
            values = {flag.key: given.pop(flag.name) for flag in flags}
            # Without a switch, a file may ask for what it does.
            named = {key: None if value is False else value for key, value in values.items()}
            typed = {flag.key: flag.option for flag in flags if named[flag.key] is not None}
            try:
                command(named=named, **given)
            except UsageError as error:
                raise UsageError(by_flags(str(error), typed)) from error

        keyword = inspect.Parameter.KEYWORD_ONLY
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # what typer reads
            [each.replace(kind=keyword) for each in parameters]
        )
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate


def by_flags(message: str, typed: Mapping[str, str]) -> str:
    """A message that names flags in the place of their keys.

    Args:
        message: What was refused.
        typed: The flags that were typed, by dotted key. A key without a dot may be an English word:
            it is taken for a key only where its value follows.
    """
    for key, option in typed.items():
        bare = r"|(?![\w.'=])" if "." in key else ""
        message = re.sub(rf"(?<![\w.'/-]){re.escape(key)}(?: =(?= ){bare})", option, message)
    return message


def several(*flags: Flag) -> tuple[Flag, ...]:
    """The same flags where a command takes more than one value, with commas."""
    return tuple(replace(flag, metavar=f"{flag.metavar},…", takes_several=True) for flag in flags)


def take_axes(named: Named, flags: Iterable[Flag]) -> dict[str, list[str]]:
    """Take the lists out of what was given: what is left has one value each.

    Args:
        named: Values of a command's flags by dotted key.
        flags: Flags that may have lists.

    Returns:
        The lists, by dotted key.

    Raises:
        UsageError: A list holds an empty value.
    """
    axes = {}
    for flag in flags:
        if flag.takes_several and "," in (named[flag.key] or ""):
            axes[flag.key] = listed(named[flag.key], flag.option)
            named[flag.key] = None
    return axes


def listed(text: str, option: str) -> list[str]:
    """The different values of a list with commas.

    Raises:
        UsageError: One of them is empty.
    """
    values = list(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in values:
        raise UsageError(f"{option} {text!r} holds an empty value: give a list such as a,b")
    return values


def name_partition(named: Named) -> None:
    """Let a flag that belongs to a kind of partition name that kind.

    Args:
        named: Values of a command's flags by dotted key, into which the kind goes.

    Raises:
        UsageError: Flags name different kinds.
    """
    of_one_kind = {ALPHA: "dirichlet", CLASSES_PER_CLIENT: "pathological"}
    kinds = {
        flag.option: kind for flag, kind in of_one_kind.items() if named.get(flag.key) is not None
    }
    if named[PARTITION.key] is not None:
        kinds[PARTITION.option] = named[PARTITION.key]
    if len(set(kinds.values())) > 1:
        raise UsageError(f"{' and '.join(kinds)} each name a partition: give one of them")
    named[PARTITION.key] = next(iter(kinds.values()), None)


def showing_defaults(
    presets: str,
    kind: Callable[[], type[RunConfig]],
    *flags: Flag,
    base: Tree | None = None,
) -> type[TyperCommand]:
    """The class of a command whose help shows its flags' defaults, and the systems that have them.

    Args:
        presets: Folder of the data sets' presets.
        kind: Gives the kind of configuration; called only where the help is asked for.
        flags: The flags.
        base: What the command lays over the preset.
    """
    by_name = {flag.name: flag for flag in flags}

    class Command(TyperCommand):
        def get_help(self, ctx: Any) -> str:
            config = kind()
            found = _defaults(presets, config) | dict(flatten(base or {}))
            for option in self.params:
                if isinstance(option, TyperOption) and (flag := by_name.get(option.name or "")):
                    option.help = f"{flag.help} (default: {_default(flag, found)})"
                    option.rich_help_panel = flag.panel or _having(flag, config)
            return super().get_help(ctx)

    return Command


def _having(flag: Flag, kind: type[RunConfig]) -> str:
    """The titles of the systems that have a flag, where not all of them do."""
    if kind.model_fields["method"].default not in METHODS:
        return "All methods"
    section = flag.key.partition(".")[0]
    having = [
        system.title
        for system in METHODS.values()
        if (system.rounds if flag is ROUNDS else section in system.sections)
    ]
    return ", ".join(having) or _ALL


def _defaults(presets: str, kind: type[RunConfig]) -> dict[str, object]:
    """What holds for the default data set, by dotted key."""
    values: Tree = kind.model_construct().model_dump(mode="json")
    found = dict(flatten(values)) | dict(flatten(preset(presets, values["dataset"])))
    if (system := METHODS.get(str(found.get("method")))) is not None:
        found[ROUNDS.key] = Rounds(system.rounds, system.round_steps).planned(found)
    return found


def _default(flag: Flag, found: Mapping[str, object]) -> str:
    value = flag.default or found.get(flag.key)
    if value is None:
        return flag.unset
    return "off" if value is False else str(value)
