"""The command ``ccfcpp forget``, which repeats a run without a client."""

from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli.cluster import DISPLAY
from ccfcpp.cli.options import AsJson, RunOptions
from ccfcpp.cli.terminal import progress_console, usage_errors


def forget(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    client: Annotated[
        list[str],
        typer.Option(metavar="C", help="Name or number of a client; can be given several times."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the new run; RUN-without-C otherwise.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Of fed-scan: go on from RUN without the client, in a fifth of its steps; a "
            "little of the client may remain.",
        ),
    ] = False,
    json_output: AsJson = False,
) -> None:
    """Run again without a client, as if it had never been there.

    The new run has the settings and the seed of RUN, and takes as long; nothing
    of the client's images reaches it. With --quick it takes a fifth of that, and
    goes on from RUN's model, in which the client had a part. Its folder is
    RUN-without-C, or the one of --out. RUN and the models that were given away
    still hold what the client added: delete them.
    """
    from ccfcpp.clustering.follow_up import run_without

    with usage_errors():
        place = run_without(run, client, out, quick=quick)
    progress_console().print(f"{run} without client {', '.join(client)}")
    DISPLAY.run(RunOptions({}, out=place, resume=True, json_output=json_output), [], profile=False)
