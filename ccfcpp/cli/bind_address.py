"""The address of a server, the clients it admits, and checks before it starts."""

import importlib.util
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.core.config import RunConfig
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import format_count
from ccfcpp.deployment.keys.local import FOLDER, HOST, PORT, require_this_machine
from ccfcpp.runs.pipeline import Opening

_HOST = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", re.ASCII)


@dataclass(frozen=True)
class ServerOptions:
    """Options of a server: its address, keys, clients and time limits; see each one's help."""

    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of server.crt, server.key and ca.crt; keys otherwise."),
    ] = None
    roster: Annotated[
        Path | None, typer.Option(help="Folder of the clients' .pub files; KEYS/roster otherwise.")
    ] = None
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where clients reach the server; 0.0.0.0:9092 otherwise."
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Try it out on this machine alone: all keys are made in keys/trial."
        ),
    ] = False
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="Begin when N of the roster are online; all otherwise."),
    ] = None
    limit: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="What a client has for an exchange.")
    ] = 600.0
    linger: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How long a client may come late for the model, after the last round.",
        ),
    ] = 60.0

    @property
    def address(self) -> str:
        """``HOST:PORT``, where the server listens."""
        return self.listen or f"{HOST if self.insecure else '0.0.0.0'}:{PORT}"  # noqa: S104

    @property
    def key_folder(self) -> Path:
        """Folder of the server's private key and certificates."""
        return self.keys or (FOLDER if self.insecure else Path("keys"))

    @property
    def admitted(self) -> Path:
        """Folder of the public keys of the clients that the server admits (the roster)."""
        return self.roster or self.key_folder / "roster"

    @property
    def typed(self) -> str:
        """The options that differ from their defaults, as they are typed, each after a space."""
        usual = vars(ServerOptions())
        given = {name: value for name, value in vars(self).items() if value != usual[name]}
        return "".join(
            f" --{name}" + (f" {shlex.quote(str(value))}" if value is not True else "")
            for name, value in given.items()
        )

    def check(self, resume: bool) -> None:
        """Raise ``UsageError`` if the options contradict each other."""
        host, _ = address(self.address)
        if not self.insecure:
            return
        require_this_machine(host)
        if self.roster is not None:
            raise UsageError(
                "--insecure makes a roster of its own: leave --roster out, or --insecure"
            )
        if self.clients is None and not resume:
            raise UsageError(
                "--insecure makes a key for each client: say how many with --clients N"
            )


def check_server_settings(opening: Opening[RunConfig], server: ServerOptions, admitted: int) -> str:
    """Check a server's settings before it contacts any client.

    ``admitted`` is the number of clients that may join.

    Returns:
        A warning if the server's certificate expires soon, else "".

    Raises:
        UsageError: More clients are wanted than exist, the settings fit no clients, or no
            client would accept the server's certificate.
    """
    from ccfcpp.deployment.keys.certificates import check_server
    from ccfcpp.deployment.keys.files import require_server_keys
    from ccfcpp.deployment.server.dry_run import dry_run

    if server.clients is not None and server.clients > admitted:
        raise UsageError(
            f"--clients {server.clients} is more than the {format_count(admitted, 'client')} of "
            f"the roster {server.admitted}: put their .pub files there, or give fewer"
        )
    keys = server.key_folder
    require_server_keys(keys)
    note = check_server(keys / "server.crt", keys / "ca.crt")
    if not opening.goes_on:
        dry_run(opening.config, server.clients or admitted)
    return note


def address(text: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` into host, without brackets, and port.

    Raises:
        UsageError: The text has another format.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not (colon and is_port and _HOST.fullmatch(host)):
        raise UsageError(
            f"{text!r} is no HOST:PORT: give a name or an address, and a port, such as "
            "server.example.org:9092, without https:// and without a path"
        )
    return host.strip("[]"), int(port)


def require_flower() -> None:
    """Raise ``UsageError`` if Flower or cryptography, which carry messages, is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ("flwr", "cryptography")):
        raise UsageError(
            "a federation over several machines needs Flower, which is not installed: pip install "
            "'.[flower]'"
        )
