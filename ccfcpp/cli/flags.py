"""Command-line flags for keys of the configuration, shared by all commands.

A flag's value is text, which the configuration checks as it checks a file's value. A flag's help is
the description of the key's field, with the values that it takes and the default, which is that of
the preset for the default data set.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperOption

from ccfcpp.core.errors import UsageError, in_file
from ccfcpp.data.registry import DATASETS

if TYPE_CHECKING:
    from ccfcpp.core.settings_reference import KeyDescription

Named = dict[str, Any]
"""Values of the flags that were given, by dotted key."""


@dataclass(frozen=True)
class Flag:
    """A command-line flag and the configuration key that it sets.

    Texts that are empty are taken from the description of the key.

    Attributes:
        key: The dotted key of the configuration.
        metavar: Placeholder of its value in the help.
        named: Its name, if it is not the last part of the key.
        help: Its description, if the command does not take all that the key does.
        values: The values it takes, if the description of the key does not say it.
        default: Its default, if it is not the configuration's value.
        form: ``str`` for a flag with a value, ``bool`` for a switch that sets the key to true,
            ``list[str]`` for a flag that can be repeated.
        several: Whether it takes several values, separated by commas; there is a run for each.
        panel: Its heading in the help; by default the names of the systems that have its key.
    """

    key: str
    metavar: str = ""
    named: str = ""
    help: str = ""
    values: str = ""
    default: str = ""
    form: type[str | bool | list[str]] = str
    several: bool = False
    panel: str = ""

    @property
    def option(self) -> str:
        """The flag as a user types it, such as ``--data-root``."""
        return "--" + (self.named or self.key.rpartition(".")[2]).replace("_", "-")

    @property
    def name(self) -> str:
        """Name of the flag's parameter in a command's function."""
        return "flag_" + self.option.removeprefix("--").replace("-", "_")

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter that a command's function gets, so that typer declares the flag."""
        option = typer.Option(self.option)
        annotation = Annotated[self.form | None, option]  # type: ignore[name-defined]
        keyword = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, keyword, default=None, annotation=annotation)

    def explain(self, option: TyperOption, setting: KeyDescription, held: object) -> None:
        """Set the help of typer's option from the key's description and its default (``held``)."""
        default = self.default or ("off" if held is False else in_file(held))
        notes = [self.values or setting.values]
        if self.default or held is not None:
            notes.append(f"default: {default}")
        said = "; ".join(filter(None, notes))
        option.help = (self.help or setting.description) + (f" ({said})" if said else "")
        if self.form is not bool:
            option.metavar = (self.metavar or setting.placeholder) + ",…" * self.several


def _with_panel(panel: str, *flags: Flag) -> tuple[Flag, ...]:
    return tuple(replace(flag, panel=panel) for flag in flags)


BY_FOLDER = ("folders", "domain")
"""Kinds of partition in which each folder is a client: for clustering, and for classification."""

DATASET = Flag("dataset", "NAME|PATH", values=", ".join(DATASETS))
METHOD = Flag("method")
PRESET = Flag("preset")
PARTITION = Flag("partition.kind", named="partition")
INSPECTED_PARTITION = replace(
    PARTITION,
    help="folders: each folder, or file of texts, is a client.",
    values="folders",
    default="none",
)
SKEW = Flag("partition.p")
ALPHA = Flag("partition.alpha")
CLASSES_PER_CLIENT = Flag("partition.classes_per_client")
CLIENTS = Flag("partition.clients")
CLUSTERS = Flag("clusters", "K|auto")
ROUNDS = Flag("rounds")
"""The configuration replaces this key by the system's own."""
DECORR = Flag("decorrelation.kind", named="decorr")
BETA = Flag("decorrelation.beta")
MODEL = Flag("model.name", named="model")
SEED = Flag("seed")
TRACK = Flag("track")
ABSENCE = _with_panel(
    "Absent clients",
    Flag("availability.sample_fraction"),
    Flag("availability.disconnection_rate"),
    Flag("availability.dropout_rate"),
)
PRIVACY = _with_panel(
    "Privacy",
    Flag("privacy.secure_sums", form=bool),
    Flag("privacy.level", named="privacy"),
    Flag("privacy.epsilon"),
    Flag("privacy.reproducible_noise", form=bool),
)
LABEL_COLUMN, CLIENT_COLUMN, ENCODER, TEXT_COLUMN = _with_panel(
    "Vectors",
    Flag("vectors.label_column"),
    Flag("vectors.client_column"),
    Flag("data.encoder", "NAME|FILE"),
    Flag("vectors.text_column"),
)
VECTORS = (
    LABEL_COLUMN,
    CLIENT_COLUMN,
    *_with_panel(
        "Vectors",
        Flag("vectors.categories", "NAME[,NAME…]"),
        Flag("vectors.dates", "NAME[,NAME…]"),
        Flag("vectors.missing"),
        # That of the preset for vectors.
        Flag("vectors.scale", default="standard"),
        Flag("vectors.components"),
    ),
    ENCODER,
    TEXT_COLUMN,
)
HOSTILITY = _with_panel(
    "Hostile clients",
    Flag("attack.kind", named="attack"),
    Flag("attack.attackers"),
    Flag("defence.rule", named="defence"),
)
IMAGES = _, SKIP = _with_panel(
    "Your own images", Flag("data.window", "LOW,HIGH"), Flag("data.skip", "SHARE")
)
MACHINE = DEVICE, _, DATA_ROOT = _with_panel(
    "Machine",
    Flag("device"),
    Flag("compute.cohort"),
    Flag("data.root", "PATH", "data-root"),
)


def several(*flags: Flag) -> tuple[Flag, ...]:
    """Return copies of flags that take several values, separated by commas."""
    return tuple(replace(flag, several=True) for flag in flags)


def set_partition_kind(named: Named) -> None:
    """Set ``partition.kind`` in ``named`` if a flag implies it, as ``--alpha`` does ``dirichlet``.

    Raises:
        UsageError: Flags belong to different kinds.
    """
    of_one_kind = {ALPHA: "dirichlet", CLASSES_PER_CLIENT: "classes", CLIENT_COLUMN: "folders"}
    kinds = {flag.option: kind for flag, kind in of_one_kind.items() if flag.key in named}
    if PARTITION.key in named:
        kinds[PARTITION.option] = named[PARTITION.key]
    if len(set(kinds.values())) > 1:
        raise UsageError(f"{' and '.join(kinds)} each name a partition: give one of them")
    if kinds:
        named[PARTITION.key] = next(iter(kinds.values()))
