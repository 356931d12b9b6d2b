"""The command ``ccfcpp datasets``."""

from pathlib import Path

from ccfcpp.cli import flags

_BY_FOLDER = """By their folder, which you fetch yourself:
  ccfcpp classify --config classify/office-caltech10 --dataset FOLDER
  ccfcpp classify --config classify/domainnet --dataset FOLDER
  ccfcpp cluster --dataset FOLDER: your own images"""


@flags.keyed(flags.DATA_ROOT)
def datasets(named: flags.Named) -> None:
    """List the data sets and where they were found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ccfcpp.data.registry import describe

    root = named["data.root"]
    table = Table("name", "images", "classes", "shape", "place")
    for name, (data, place) in describe(None if root is None else Path(root)).items():
        size = "x".join(map(str, data.shape))
        table.add_row(name, f"{data.images:,}", str(data.classes), size, Text(place))
    console = Console()
    console.print(table)
    console.print(_BY_FOLDER, markup=False, highlight=False)
