"""Flags that commands share."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        help="YAML file of settings, or a shipped one such as cluster/mnist; over those before it "
        "and the data set's.",
    ),
]
Dataset = Annotated[
    str | None,
    typer.Option(help="A data set's name, an image folder or its archive, or an .npz file."),
]
Clients = Annotated[str | None, typer.Option(metavar="M", help="Number of clients.")]
DisconnectionRate = Annotated[
    str | None, typer.Option(metavar="F", help="Share of the clients absent for the whole run.")
]
Clusters = Annotated[str | None, typer.Option(metavar="K", help="Number of clusters k.")]
PartitionKind = Annotated[
    str | None,
    typer.Option("--partition", help="skew, iid, or folders (each folder is a client)."),
]
DropoutRate = Annotated[
    str | None,
    typer.Option(metavar="F", help="Probability that a client is absent from a round."),
]
Seed = Annotated[str | None, typer.Option(metavar="S", help="Seed of all random numbers.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda.")]
Cohort = Annotated[
    str | None,
    typer.Option(metavar="N", help="Clients that are trained side by side; auto by memory."),
]
DataRoot = Annotated[
    str | None, typer.Option(help="Folder of the data sets; $CCFCPP_DATA otherwise.")
]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Log the rounds for TensorBoard too (an extra).")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder of the run; a new one under runs/ otherwise.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as seed=3."),
]
ShowProfile = Annotated[bool, typer.Option("--profile", help="Say in the end where the time went.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]
