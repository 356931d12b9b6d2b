"""The command ``ccfcpp presets``, which lists presets of settings, or prints one."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ccfcpp.core.presets import find_preset, preset_file, preset_names, summary


def presets(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A preset to print; all are listed without.", show_default=False
        ),
    ] = None,
) -> None:
    """List the presets that --config takes by name, or print one."""
    if name is not None:
        typer.echo(preset_file(find_preset(name)).read_text(), nl=False)
        return
    table = Table(Column("--config", no_wrap=True), "what it is")
    for each in preset_names():
        table.add_row(Text(each), Text(summary(each)))
    Console().print(table)
