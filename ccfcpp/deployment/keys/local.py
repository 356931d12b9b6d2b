"""Keys for a test federation on one machine, created automatically in one folder.

Messages are encrypted and signed as over a network. But all keys lie in one folder: anyone who can
read it can pretend to be the server or any client.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import locked

FOLDER = Path("keys") / "trial"
HOST, PORT = "127.0.0.1", 9092
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_DAYS = 30


def require_this_machine(host: str) -> None:
    """Raise ``UsageError`` unless a host is a loopback address, such as 127.0.0.1."""
    if host not in _LOOPBACK:
        raise UsageError(
            f"--insecure is for clients on this machine, and {host} is not its own address: take "
            f"{HOST}, or leave --insecure out and make keys with ccfcpp keys"
        )


def make_local_keys(folder: Path, clients: int) -> None:
    """Create the missing keys of an authority, a server and ``clients`` clients, in one folder."""
    # The import is slow, and the help of commands needs only the constants above.
    from ccfcpp.deployment.keys.creation import make_authority, make_client, make_server

    if not (folder / "ca.crt").exists():
        make_authority(folder, _DAYS)
    if not (folder / "server.crt").exists():
        make_server(folder, HOST, _DAYS)
    for name in (f"client-{number + 1}" for number in range(clients)):
        if not (folder / "clients" / f"{name}.key").exists():
            make_client(folder, name)


@contextmanager
def free_key(folder: Path) -> Iterator[Path]:
    """Within the context, lock a client's key that no other process uses, and yield its path.

    Raises:
        UsageError: There are no keys in the folder, or all are in use.
    """
    keys = sorted(
        (folder / "clients").glob("client-*.key"), key=lambda path: (len(path.name), path)
    )
    for path in keys:
        with locked(path) as free:
            if free:
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
