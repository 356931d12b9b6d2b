"""The options that several commands have, and that are no key of the configuration."""

from pathlib import Path
from typing import Annotated

import typer

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
