"""Keys of a federation on one machine, to try it out: they are made by themselves, in one folder.

Messages are encrypted and clients sign them, as over a network. What is missing is that the keys
lie apart: who may read the folder can be the server, and every client.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.making import make_authority, make_client, make_server

FOLDER = Path("keys") / "trial"
HOST, PORT = "127.0.0.1", 9092
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_DAYS = 30


def require_this_machine(host: str) -> None:
    """Raise ``UsageError`` where an address is not this machine's alone."""
    if host not in _LOOPBACK:
        raise UsageError(
            f"--insecure is for clients on this machine, and {host} is not its own address: take "
            f"{HOST}, or leave --insecure out and make keys with ccfcpp keys"
        )


def make_local_keys(folder: Path, clients: int) -> None:
    """Make what is missing: an authority, the server's key, and ``client-1`` to ``client-N``.

    Args:
        folder: Where to.
        clients: N.

    Raises:
        UsageError: The folder cannot be written, or ``cryptography`` is missing.
    """
    if not (folder / "ca.crt").exists():
        make_authority(folder, _DAYS)
    if not (folder / "server.crt").exists():
        make_server(folder, HOST, _DAYS)
    for name in (f"client-{number + 1}" for number in range(clients)):
        if not (folder / "clients" / f"{name}.key").exists():
            make_client(folder, name)


@contextmanager
def free_key(folder: Path) -> Iterator[Path]:
    """The key of a client that nobody on this machine is, taken for as long as the context lasts.

    Args:
        folder: As for ``make_local_keys``.

    Raises:
        UsageError: There are no such keys, or all are taken.
    """
    keys = sorted(
        (folder / "clients").glob("client-*.key"), key=lambda path: (len(path.name), path)
    )
    for path in keys:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            yield path
            return
    if keys:
        raise UsageError(
            f"all {len(keys)} keys in {folder} are in use: start ccfcpp serve --insecure with more "
            "--clients"
        )
    raise UsageError(
        f"there are no keys in {folder}: start ccfcpp serve --insecure in this folder first, or "
        "give the place of its keys with --key"
    )
