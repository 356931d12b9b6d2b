"""The commands ``ccfcpp keys``."""

from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.core.units import counted

_YEAR = 365

Folder = Annotated[Path, typer.Option("--out", help="Folder of the keys.")]
Days = Annotated[
    int, typer.Option("--days", metavar="N", min=1, max=100 * _YEAR, help="Days it is valid.")
]
Seal = Annotated[
    bool,
    typer.Option(
        "--seal",
        help="Seal the private key under a passphrase, which is asked for when it is used.",
    ),
]
_KEYS = Path("keys")

keys = typer.Typer(
    help="Make the keys of a federation over several machines: of an authority and of a server, so "
    "that clients know their server, and of each client, so that the server knows its clients. For "
    "secure sums the authority also signs a roster, so that clients know each other. A passphrase "
    "is typed, or is the first line of the file that CCFCPP_PASSPHRASE_FILE names."
)


@keys.command()
def authority(out: Folder = _KEYS, days: Days = 10 * _YEAR, seal: Seal = False) -> None:
    """Make an authority, which signs the server's certificate and the clients' roster.

    Make one for each federation, on a machine that others do not use. Its key
    makes servers and clients that clients trust: it goes nowhere, not even to
    the server. Its certificate goes to every client.
    """
    from ccfcpp.deployment.keys.making import make_authority

    files = make_authority(out, days, _passphrase("the authority's key", seal))
    typer.echo(f"{files.key}: private, stays here; whoever has it can pretend to be the server")
    typer.echo(f"{files.certificate}: give it to the server and to every client")
    typer.echo(f"valid until {files.ends:%Y-%m-%d}; next: ccfcpp keys server HOST")


@keys.command()
def server(
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="Name or IP address by which clients reach it.")
    ],
    out: Folder = _KEYS,
    days: Days = 2 * _YEAR,
    seal: Seal = False,
) -> None:
    """Make a server's key, and a certificate that the authority in the same folder signs.

    HOST is the name or the IP address by which clients reach the server. Key
    and certificate go there.
    """
    from ccfcpp.deployment.keys.making import make_server

    files = make_server(out, host, days, _passphrase("the server's key", seal))
    typer.echo(f"{files.key}: private, for the server alone")
    typer.echo(f"{files.certificate}: for the server, which shows it to every client")
    typer.echo(f"for {host} and this machine itself, valid until {files.ends:%Y-%m-%d}")


@keys.command()
def client(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="What it is called: letters, digits, dashes, underscores, dots."
        ),
    ],
    out: Folder = _KEYS,
    seal: Seal = False,
) -> None:
    """Make a client's key, on the client's machine.

    The private key stays there. The public one, NAME.pub, goes to the server,
    which admits the clients whose public keys lie in its roster. NAME is made of
    letters, digits, dashes, underscores and dots.
    """
    from ccfcpp.deployment.keys.making import make_client

    files = make_client(out, name, _passphrase(f"the key of {name}", seal))
    typer.echo(f"{files.key}: private, stays at the client; whoever has it can pretend to be it")
    typer.echo(f"{files.public}: give it to the server, for its folder {files.public.parent.name}/")
    typer.echo("the client needs the authority's certificate, ca.crt, too")


@keys.command()
def roster(
    out: Folder = _KEYS,
    clients: Annotated[
        Path | None,
        typer.Option("--roster", help="Folder of the clients' .pub files; KEYS/roster otherwise."),
    ] = None,
) -> None:
    """Sign who the clients are, by the authority in the same folder, for secure sums.

    The server needs the file, and gives it to every client. By it clients know
    each other's keys, so that a server cannot take part in their sums itself.
    Check that each key is of the client whose name it has. Sign again when a
    client comes or goes. Where the authority's key lies in the server's folder,
    ccfcpp serve signs by itself.
    """
    from ccfcpp.deployment.keys.making import make_roster

    folder = clients or out / "roster"
    signed, path = make_roster(out, folder)
    typer.echo(f"{path}: {counted(len(signed.keys), 'client')}: {', '.join(signed.keys)}")
    typer.echo(f"give it to the server, beside its folder {folder.name}/")


def _passphrase(key: str, seal: bool) -> str | None:
    """The passphrase of a key that is to be made; None if it is not to be sealed."""
    from ccfcpp.deployment.keys.passphrases import new_passphrase

    return new_passphrase(key) if seal else None
