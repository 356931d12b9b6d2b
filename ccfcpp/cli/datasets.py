"""The command ``ccfcpp datasets``."""

from pathlib import Path
from typing import Annotated

import typer


def datasets(
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets; $CCFCPP_DATA otherwise.")
    ] = None,
) -> None:
    """List the data sets and where they were found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ccfcpp.data.registry import describe

    table = Table("name", "images", "classes", "shape", "place")
    for row in describe(data_root):
        size = "x".join(map(str, row.shape))
        table.add_row(row.name, f"{row.images:,}", str(row.classes), size, Text(row.place))
    Console().print(table)
