"""Command-line options that several commands share and that are no keys of the configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli import flags
from ccfcpp.core.config import Tree
from ccfcpp.core.config_layers import (
    Layers,
    flatten,
    merge,
    parse_assignments,
    read_configs,
    unflatten,
)
from ccfcpp.core.errors import KeyValue, UsageError, in_file

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as seed=3."),
]
Seeds = Annotated[
    int, typer.Option(metavar="N", min=1, help="Run N seeds, and give mean and deviation.")
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Go on from a finished run of fed-scan, with new clients and more clusters; its own "
        "keep their numbers.",
    ),
]
ShowProfile = Annotated[bool, typer.Option("--profile", help="Say in the end where the time went.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]


@dataclass(frozen=True)
class RunOptions:
    """Options of commands that start runs; ``named`` has values of flags by the key they set."""

    named: flags.Named
    config: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            metavar="FILE|NAME",
            help="YAML file of settings, or a preset (ccfcpp presets lists them); overrides "
            "earlier ones and the data set's preset.",
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; a new one under runs/ otherwise.")
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False
    settings: Settings = None
    json_output: AsJson = False

    def layers(self, *groups: str) -> Layers:
        """Return the user's settings: a nested dict for each file, and last one for all flags.

        Presets can be named without their folder if it is one of ``groups``.

        Raises:
            UsageError: A file cannot be read, or single values are refused.
        """
        files = read_configs(self.config or [], groups)
        return [*files, single_values(self.named, self.settings)]


def single_values(named: flags.Named, settings: Sequence[str] | None) -> Tree:
    """Return the user's single values: those of flags, by dotted key, and of ``--set``.

    Raises:
        UsageError: An assignment is no ``KEY=VALUE``, or sets what a flag sets, too.
    """
    assigned = parse_assignments(settings or [])
    for key, value in flatten(assigned):
        if key in named:
            again = f" and --set {key}={in_file(value)} set the same: give one of them"
            raise UsageError(KeyValue(key, named[key]), again)
    return merge(unflatten(named), assigned)


def continuation_settings(options: RunOptions, layers: Layers) -> Tree:
    """Return the user's settings for a run that continues a finished one (``--from``).

    Raises:
        UsageError: There is no number of clusters, or ``--resume`` is given, too.
    """
    values = merge(*layers)
    if "clusters" not in values:
        raise UsageError("--from needs --clusters: how many there are with the new ones")
    if not str(values["clusters"]).isdecimal():
        raise UsageError(
            f"--clusters {values['clusters']} does not go with --from, whose clusters keep their "
            "numbers: give how many there are with the new ones"
        )
    if options.resume:
        raise UsageError("--from begins a run, and --resume goes on with one: give one of them")
    return values
