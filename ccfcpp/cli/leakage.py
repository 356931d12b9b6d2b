"""The command ``ccfcpp leakage``, which attacks a finished run to measure what it reveals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli.options import AsJson
from ccfcpp.cli.terminal import print_rows, progress_console


def leakage(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    client: Annotated[
        str | None,
        typer.Option(
            metavar="C",
            help="Name or number of a client: are its images told from others? Also of one that "
            "the run forgot.",
        ),
    ] = None,
    json_output: AsJson = False,
) -> None:
    """Attack a finished run of ccfcpp cluster, to measure what it reveals about its images.

    Membership: can images that the model, or a client's decoder, was trained on
    be told from others: those that data.images left out, or of absent clients?
    Inversion, if centroids are made of pixels: how near are the averages that
    clients sent to a single image? Graphs that clients sent: which samples are
    of one class? The numbers go to RUN/leakage.json, and ccfcpp report shows them.
    """
    from ccfcpp.clustering.leakage import leakage as attack
    from ccfcpp.reports.summary_tables import leakage_tables
    from ccfcpp.runs.environment import use_processors

    use_processors()
    progress_console().print(f"attacking {run} …")
    results = attack(run, client)
    if json_output:
        typer.echo(json.dumps(results))
        return
    for title, rows in leakage_tables(results).items():
        print_rows(title, rows)
