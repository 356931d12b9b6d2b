"""The server of a federation: its API for clients, and the gate (reverse proxy) before it."""

import tempfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.certificates import PublicKey, is_encrypted, public_pem, read_key
from ccfcpp.deployment.keys.files import public_path, require_server_keys
from ccfcpp.deployment.keys.passphrases import read_passphrase
from ccfcpp.deployment.keys.roster import read_public_key, read_roster, roster_names
from ccfcpp.deployment.server.clock import steady_clock
from ccfcpp.deployment.server.fleet import Fleet
from ccfcpp.deployment.server.fleet_app import serve_fleet
from ccfcpp.deployment.server.gate_process import gate_process
from ccfcpp.deployment.server.gate_server import GateSetting


@contextmanager
def open_server(
    keys: Path, roster: Path, host: str, port: int, logs: Path
) -> Iterator[tuple[Fleet, int]]:
    """Run a server for the clients whose keys are in a folder, the roster, within the context.

    Args:
        keys: Folder of the server's keys.
        roster: Folder of the clients' public keys.
        host: Address to listen on.
        port: Port to listen on; 0: any free one.
        logs: Folder for log files.

    Yields:
        The link to the clients, and the port on which the gate listens.
    """
    require_server_keys(keys)
    admitted, key, passphrase = read_roster(roster), keys / "server.key", None
    if is_encrypted(key):
        passphrase = read_passphrase(key)
        read_key(key, passphrase)  # its error is clearer than that of TLS
    # A temporary folder, since a socket's path must be short and its folder private.
    with steady_clock(), tempfile.TemporaryDirectory(prefix="ccfcpp-") as place:
        known = {name: public_pem(key) for name, key in admitted.items()}
        fleet, behind = Fleet(known, lambda: _unchanged(roster, admitted)), Path(place) / "fleet"
        setting = GateSetting(host, port, keys / "server.crt", key, behind, passphrase)
        with (
            serve_fleet(fleet, behind, logs / "flower.log"),
            gate_process(setting, logs / "gate.log") as listening,
        ):
            yield fleet, listening


def _unchanged(roster: Path, before: Mapping[str, PublicKey]) -> Set[str]:
    """Return the clients whose key in the folder ``roster`` is unchanged or cannot be read."""
    try:
        listed = roster_names(roster)
    except OSError:
        return before.keys()
    return {n for n in before if n in listed and _may_hold(public_path(roster, n), before[n])}


def _may_hold(path: Path, key: PublicKey) -> bool:
    """Return whether a file holds a key, which it may if it cannot be read."""
    try:
        return read_public_key(path) == key
    except (OSError, UsageError):
        return True
