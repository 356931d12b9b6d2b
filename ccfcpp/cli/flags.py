"""The flags that stand for a key of the configuration: one table for all commands.

A flag's value is text, which the configuration checks as it checks a file's: there is one rule for
each key. Its help shows the default, which is the preset's for the default data set.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ccfcpp.clustering.methods import METHODS
from ccfcpp.core.config import RunConfig, Tree
from ccfcpp.core.config_layers import flatten, preset
from ccfcpp.core.errors import UsageError
from ccfcpp.data.registry import DATASETS
from supervised.classifiers import CLASSIFIERS

Named = dict[str, Any]
"""Values of flags that were given, by dotted key; None for a flag that was not."""


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
    """

    option: str
    key: str
    help: str
    metavar: str = "TEXT"
    unset: str = "none"
    switch: bool = False
    takes_several: bool = False

    @property
    def name(self) -> str:
        """Of the parameter."""
        return "flag_" + self.option.removeprefix("--").replace("-", "_")

    @property
    def parameter(self) -> inspect.Parameter:
        """For a command's signature."""
        kind: Any = bool if self.switch else str
        option = typer.Option(
            self.option, metavar=None if self.switch else self.metavar, help=self.help
        )
        annotation = Annotated[kind | None, option]
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )


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
ROUNDS = Flag("--rounds", "training.rounds", "Cluster-contrastive rounds.", "R")
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
SAMPLE_FRACTION = Flag(
    "--sample-fraction",
    "availability.sample_fraction",
    "Share of the clients that the server invites in a round.",
    "F",
)
DISCONNECTION_RATE = Flag(
    "--disconnection-rate",
    "availability.disconnection_rate",
    "Share of the clients absent for the whole run.",
    "F",
)
DROPOUT_RATE = Flag(
    "--dropout-rate",
    "availability.dropout_rate",
    "Probability that a client is absent from a round.",
    "F",
)
SEED = Flag("--seed", "seed", "Seed of all random numbers.", "S")
DEVICE = Flag("--device", "device", "auto, cpu or cuda.", "NAME")
COHORT = Flag("--cohort", "compute.cohort", "Clients that are trained side by side.", "N")
DATA_ROOT = Flag(
    "--data-root", "data.root", "Folder of the data sets.", "PATH", "$CCFCPP_DATA, or a cache"
)
TENSORBOARD = Flag(
    "--tensorboard", "tensorboard", "Log the rounds for TensorBoard too (an extra).", switch=True
)

SECURE_SUMS = Flag(
    "--secure-sums",
    "privacy.secure_sums",
    "The server learns sums over clients, and no client's part (an extra).",
    switch=True,
)
PRIVACY_LEVEL = Flag(
    "--privacy",
    "privacy.level",
    "Differential privacy: none, client or image (an extra).",
    "LEVEL",
)
EPSILON = Flag("--epsilon", "privacy.epsilon", "Budget of differential privacy.", "E")
REPRODUCIBLE_NOISE = Flag(
    "--reproducible-noise",
    "privacy.reproducible_noise",
    "Draw privacy's noise from the seed: it then protects nothing.",
    switch=True,
)

ATTACK = Flag(
    "--attack",
    "attack.kind",
    "Let some clients send something false, to measure its effect: sign-flip, scaled, noise, "
    "constant, false-sizes or one-point.",
    "NAME",
)
ATTACKERS = Flag("--attackers", "attack.attackers", "Share of the clients that do so.", "F")
DEFENCE = Flag(
    "--defence",
    "defence.rule",
    "What the server does against such: none, bound, trimmed-mean, median, geometric-median, krum "
    "or multi-krum.",
    "NAME",
)

MACHINE = (DEVICE, COHORT, DATA_ROOT)
"""Where a run takes place."""
PRIVACY = (SECURE_SUMS, PRIVACY_LEVEL, EPSILON, REPRODUCIBLE_NOISE)
"""What is protected beside images' staying where they are."""
HOSTILITY = (ATTACK, ATTACKERS, DEFENCE)
"""Clients that send something false."""
ABSENCE = (SAMPLE_FRACTION, DISCONNECTION_RATE, DROPOUT_RATE)
"""Which clients are there."""


def keyed(*flags: Flag) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command some flags of the table, before its own.

    Args:
        flags: The flags. The command gets their values as its argument ``named``.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        parameters = [flag.parameter for flag in flags]
        parameters += [each for name, each in own.items() if name != "named"]

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            values = {flag.key: given.pop(flag.name) for flag in flags}
            # Without a switch, a file may ask for what it does.
            named = {key: None if value is False else value for key, value in values.items()}
            command(named=named, **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # what typer reads
            [each.replace(kind=keyword) for each in parameters]
        )
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate


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
    """The class of a command whose help shows the defaults of its flags.

    Args:
        presets: Folder of the data sets' presets.
        kind: Gives the kind of configuration; called only where the help is asked for.
        flags: The flags.
        base: What the command lays over the preset.
    """
    by_name = {flag.name: flag for flag in flags}

    class Command(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            found = dict(_defaults(presets, kind())) | dict(flatten(base or {}))
            options: dict[str | None, Any] = {option.name: option for option in self.params}
            for name, flag in by_name.items():
                options[name].help = f"{flag.help} (default: {_default(flag, found)})"
            super().format_help(ctx, formatter)

    return Command


def _defaults(presets: str, kind: type[RunConfig]) -> Mapping[str, Any]:
    """What holds for the default data set, by dotted key."""
    values: Tree = kind.model_construct().model_dump(mode="json")
    return dict(flatten(values)) | dict(flatten(preset(presets, values["dataset"])))


def _default(flag: Flag, found: Mapping[str, Any]) -> str:
    value = found.get(flag.key)
    if value is None:
        return flag.unset
    return "off" if value is False else str(value)
