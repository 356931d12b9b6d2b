"""The command ``ccfcpp datasets``, which lists the data sets."""

from pathlib import Path

import typer

from ccfcpp.cli import flags
from ccfcpp.cli.setting_options import with_flags
from ccfcpp.cli.terminal import print_rows
from ccfcpp.clustering.config import ClusterConfig
from ccfcpp.data.registry import describe

_BY_FOLDER = """By their folder, which you fetch yourself:
  ccfcpp classify --config classify/office-caltech10 --dataset FOLDER
  ccfcpp classify --config classify/domainnet --dataset FOLDER
  ccfcpp cluster --dataset FOLDER: your own images"""


@with_flags([flags.DATA_ROOT], ClusterConfig)
def datasets(named: flags.Named) -> None:
    """List the data sets and where they were found."""
    root = named.get("data.root")
    rows = [
        {
            "name": name,
            "images": f"{data.images:,}",
            "classes": str(data.classes),
            "shape": "x".join(map(str, data.shape)),
            "place": place,
        }
        for name, (data, place) in describe(None if root is None else Path(root)).items()
    ]
    print_rows("", rows)
    typer.echo(_BY_FOLDER)
