"""The commands ``ccfcpp keys``, which make, sign, renew and revoke a federation's keys."""

from pathlib import Path
from typing import Annotated

import typer

from ccfcpp.cli.bind_address import address
from ccfcpp.core.errors import UsageError
from ccfcpp.core.units import format_count

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
Name = Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]
OnRoster = Annotated[
    Path | None,
    typer.Option("--roster", help="Folder of the clients' .pub files; KEYS/roster otherwise."),
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

    Make one for each federation, on a machine that others do not use. Whoever has
    its key can make servers and clients that clients trust: keep the key there,
    and not on the server. Its certificate goes to every client.
    """
    from ccfcpp.deployment.keys.creation import make_authority

    end = make_authority(out, days, _passphrase("the authority's key", seal))
    typer.echo(
        f"{out / 'ca.key'}: private, stays here; whoever has it can pretend to be the server"
    )
    typer.echo(f"{out / 'ca.crt'}: give it to the server and to every client")
    typer.echo(f"valid until {end:%Y-%m-%d}; next: ccfcpp keys server HOST")


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
    from ccfcpp.deployment.keys.creation import make_server

    end = make_server(out, host, days, _passphrase("the server's key", seal))
    typer.echo(f"{out / 'server.key'}: private, for the server alone")
    typer.echo(f"{out / 'server.crt'}: for the server, which shows it to every client")
    typer.echo(f"for {host} and this machine itself, valid until {end:%Y-%m-%d}")


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
    from ccfcpp.deployment.keys.creation import make_client

    private, public = make_client(out, name, _passphrase(f"the key of {name}", seal))
    typer.echo(f"{private}: private, stays at the client; whoever has it can pretend to be it")
    typer.echo(f"{public}: give it to the server, for its folder {public.parent.name}/")
    typer.echo("the client needs the authority's certificate, ca.crt, too")


@keys.command()
def roster(out: Folder = _KEYS, clients: OnRoster = None) -> None:
    """Sign the roster (list of clients) with the authority's key, for secure sums.

    The server needs the file, and gives it to every client. It tells clients each
    other's keys, so that the server cannot pose as a client in their sums. Check
    that each key belongs to the client whose name it has. Sign again when a client
    comes or goes. If the authority's key lies in the server's folder, ccfcpp serve
    signs by itself.
    """
    from ccfcpp.deployment.keys.creation import make_roster

    folder = clients or out / "roster"
    signed, path = make_roster(out, folder)
    typer.echo(f"{path}: {format_count(len(signed.keys), 'client')}: {', '.join(signed.keys)}")
    typer.echo(f"give it to the server, beside its folder {folder.name}/")


@keys.command()
def kit(
    name: Name,
    server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the site reaches the server.")
    ],
    out: Annotated[Path | None, typer.Option(help="The zip; NAME.zip otherwise.")] = None,
    folder: Annotated[
        Path, typer.Option("--keys", help="Folder of ca.crt and of the roster.")
    ] = _KEYS,
    wheel: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The package for the kit: ccfcpp-….whl (pip wheel)."),
    ] = None,
    constraints: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Versions and hashes of what it needs (scripts.constraints).",
        ),
    ] = None,
) -> None:
    """Make one file for a client's site: its sealed key, ca.crt, its rules and instructions.

    This also puts the client on the roster. The passphrase of its key is asked for:
    tell it to the site in another way than you send the file. It is better if a
    site makes its key itself (ccfcpp keys request).
    """
    from ccfcpp.deployment.keys.kits import make_kit

    address(server)
    path = out or Path(f"{name}.zip")
    passphrase = _passphrase(f"the key of {name}", seal=True)
    assert passphrase is not None
    public = make_kit(folder, name, server, path, passphrase, wheel, constraints)
    typer.echo(f"{path}: for {name} alone; its README.txt says what to do")
    typer.echo(f"{public}: for the server's roster")
    typer.echo("tell the passphrase another way, such as by telephone")


@keys.command()
def request(name: Name, out: Folder = _KEYS, seal: Seal = False) -> None:
    """At a client, make a request to be put on the roster, and a key unless it has one.

    The private key stays there. The file NAME.request goes to the server's
    owner, who puts the client on the roster by ccfcpp keys sign.
    """
    from ccfcpp.deployment.keys.requests import make_request

    _tell_request(*make_request(out, name, _passphrase(f"the key of {name}", seal)))


@keys.command()
def sign(
    file: Annotated[Path, typer.Argument(metavar="REQUEST", help="The client's NAME.request.")],
    out: Folder = _KEYS,
    clients: OnRoster = None,
) -> None:
    """At the server, put the client that made a request on the roster.

    Compare the number that is printed with the one that the client was told: the
    key is the client's only if they are equal. For secure sums sign the roster
    again afterwards (ccfcpp keys roster).
    """
    from ccfcpp.deployment.keys.requests import accept_request
    from ccfcpp.deployment.keys.roster import fingerprint

    request, path = accept_request(file, clients or out / "roster")
    typer.echo(f"{path}: {request.name} is on the roster, with the key {fingerprint(request.key)}")


@keys.command()
def revoke(name: Name, out: Folder = _KEYS, clients: OnRoster = None) -> None:
    """At the server, take a client off the roster; a running server refuses it within seconds.

    For secure sums sign the roster again afterwards (ccfcpp keys roster).
    """
    from ccfcpp.deployment.keys.requests import take_off_roster

    path = take_off_roster(name, clients or out / "roster")
    typer.echo(f"{name} is off the roster; its key is kept as {path}")


@keys.command()
def renew(
    name: Annotated[
        str, typer.Argument(metavar="server|NAME", help="The server, or a client by its name.")
    ],
    out: Folder = _KEYS,
    days: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=100 * _YEAR, help="Days it is valid (default: 730)."),
    ] = None,
    seal: Seal = False,
) -> None:
    """Renew the server's certificate (at the authority) or a client's key (at the client).

    The server keeps its key: only server.crt goes to it again. A client gets a new
    key, and a request for ccfcpp keys sign that the old key signs, too.
    """
    if name == "server":
        from ccfcpp.deployment.keys.creation import renew_server

        if seal:
            raise UsageError("the server keeps its key: leave --seal out")
        end = renew_server(out, days or 2 * _YEAR)
        typer.echo(f"{out / 'server.crt'}: for the server, valid until {end:%Y-%m-%d}")
        return
    from ccfcpp.deployment.keys.requests import renew_client

    if days is not None:
        raise UsageError(
            f"--days {days} has no effect on a client's key, which has no end: leave it out"
        )
    _tell_request(*renew_client(out, name, _passphrase(f"the new key of {name}", seal)))
    typer.echo(f"until then take part with {out}/clients/{name}.key.old")


def _tell_request(path: Path, number: str) -> None:
    typer.echo(f"{path}: give it to the server's owner, for ccfcpp keys sign")
    typer.echo(f"and tell them the number of the key another way: {number}")


def _passphrase(key: str, seal: bool) -> str | None:
    """Ask for the passphrase of a new key; return None if it is not to be sealed."""
    from ccfcpp.deployment.keys.passphrases import new_passphrase

    return new_passphrase(key) if seal else None
