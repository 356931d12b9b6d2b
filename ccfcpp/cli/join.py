"""The command ``ccfcpp join``: it parses, calls and prints."""

import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli.serve import address, require_flower
from ccfcpp.cli.terminal import progress_console
from ccfcpp.core.errors import UsageError
from ccfcpp.core.sending import ALWAYS, KINDS

_OPTIONAL = [kind for kind in KINDS if kind not in ALWAYS]


def add_join(app: typer.Typer) -> None:
    """Give an application the command."""
    app.command()(join)


def join(
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's gate.")],
    key: Annotated[Path, typer.Option(help="The client's private key (ccfcpp keys client).")],
    data: Annotated[str, typer.Option(help="Image folder, archive of one, or .npz file.")],
    authority: Annotated[Path, typer.Option(help="The authority's certificate.")] = Path("ca.crt"),
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help=f"Also send: {', '.join(_OPTIONAL)}. Models, centroids and sums are allowed.",
        ),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of what the client remembers; KEY.state otherwise.")
    ] = None,
) -> None:
    """Take part in a federation with the images of this machine, which stay here."""
    address(server)
    allowed = frozenset(kind for kind in KINDS if kind in (allow or []))
    if unknown := [kind for kind in allow or [] if kind not in KINDS]:
        raise UsageError(f"--allow {unknown[0]} is refused: it should be {' or '.join(_OPTIONAL)}")
    for path in (key, authority):
        if not path.is_file():
            raise UsageError(f"{path} is missing: make keys with ccfcpp keys")
    if not Path(data).exists():
        raise UsageError(f"there are no images at {data}: give another --data")
    place = state or key.with_suffix(".state")
    console = progress_console()

    require_flower()
    from ccfcpp.deployment.halves import load_for
    from ccfcpp.deployment.processes import kept_running, super_node
    from ccfcpp.deployment.sockets import answer_forever, listen
    from ccfcpp.deployment.worker import Worker
    from ccfcpp.runs.environment import choose_device, use_processors

    use_processors()
    worker = Worker(
        lambda charter: load_for(charter, data),
        place,
        allowed,
        choose_device("auto"),
        console.print,
    )
    # A path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ccfcpp-") as folder:
        socket = Path(folder) / "worker"
        command, environment = super_node(place / "flower", server, authority, key, socket)
        log = place / "supernode.log"
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with listen(socket) as listener, kept_running(command, environment, log, console.print):
            console.print(f"joining {server}; press Ctrl-C to leave")
            answer_forever(listener, worker.answer)
