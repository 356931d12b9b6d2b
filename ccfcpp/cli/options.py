"""The options that several commands have, and that are no key of the configuration."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli import flags
from ccfcpp.core.config_layers import flatten, merge, parse_assignments, read_configs
from ccfcpp.runs.given import Given, as_tree

Config = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        metavar="FILE|NAME",
        help="YAML file of settings, or a preset (ccfcpp presets lists them); over those before it "
        "and the data set's.",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Folder of the run; a new one under runs/ otherwise.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as seed=3."),
]
Seeds = Annotated[
    int, typer.Option(metavar="N", min=1, help="Run N seeds, and give mean and deviation.")
]
ShowProfile = Annotated[bool, typer.Option("--profile", help="Say in the end where the time went.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]


@dataclass(frozen=True)
class Asked:
    """The options of a command that runs something.

    Attributes:
        named: Values of its flags by dotted key.
        table: Its flags.
        config: Files or presets.
        out: Folder of the run.
        resume: Whether a run goes on.
        settings: Single values, as ``key=value``.
        json_output: Whether the results are printed as JSON.
    """

    named: flags.Named
    config: Config = None
    out: Out = None
    resume: Resume = False
    settings: Settings = None
    json_output: AsJson = False
    table: Sequence[flags.Flag] = ()

    def given(self, groups: Sequence[str] = ()) -> Given:
        """The settings that the user gave.

        Args:
            groups: Folders of the presets that the command means by a short name.

        Raises:
            UsageError: A file cannot be read, or a setting is of another form.
        """
        named = dict(self.named)
        rounds = named.pop(flags.ROUNDS.key, None)
        assigned = parse_assignments(self.settings or [])
        options = {flag.key: flag.option for flag in self.table}
        for key, _ in flatten(assigned):
            options.pop(key, None)
        files = tuple(read_configs(self.config or [], groups))
        return Given(files, merge(as_tree(named), assigned), rounds, options)


def running(*table: flags.Flag) -> Callable[[flags.Command], flags.Command]:
    """Give a command some flags of the table, and the options of a command that runs something.

    Args:
        table: The flags. The command gets them and the options as its argument ``asked``.
    """

    def decorate(command: flags.Command) -> flags.Command:
        common = dict(inspect.signature(Asked).parameters)
        del common["table"]

        @functools.wraps(command)
        def wrapper(**given: object) -> None:
            asked = {name: given.pop(name) for name in common}
            command(Asked(**asked, table=table), **given)  # type: ignore[arg-type] # typer has made them

        own = inspect.signature(command, eval_str=True).parameters
        both = [each for name, each in own.items() if name != "asked"] + [*common.values()]
        keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in both]
        wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
        return flags.keyed(*table)(wrapper)

    return decorate
