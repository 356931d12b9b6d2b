"""A server of the federation: the fleet of its clients, and the gate in front of it."""

import tempfile
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.certificates import is_sealed, read_key
from ccfcpp.deployment.keys.files import ServerKeys
from ccfcpp.deployment.keys.passphrases import passphrase_of
from ccfcpp.deployment.keys.roster import key_on, names_on, read_roster
from ccfcpp.deployment.server.clock import steady_clock
from ccfcpp.deployment.server.fleet import Fleet
from ccfcpp.deployment.server.fleet_app import serve_fleet
from ccfcpp.deployment.server.gate_process import gate_process
from ccfcpp.deployment.server.gate_server import GateSetting


@contextmanager
def open_server(
    keys: Path, roster: Path, host: str, port: int, logs: Path
) -> Iterator[tuple[Fleet, int]]:
    """Serve the clients of a roster behind the gate within the context.

    Yields:
        The link to the clients, and the port on which the gate listens.
    """
    files, names = ServerKeys.of(keys), read_roster(roster)
    passphrase = None
    if is_sealed(files.key):
        passphrase = passphrase_of(files.key)
        read_key(files.key, passphrase)  # TLS would not say what is wrong with it
    # The path of a socket must be short, and its folder is for this user alone.
    with steady_clock(), tempfile.TemporaryDirectory(prefix="ccfcpp-") as place:
        fleet, behind = Fleet(names, lambda: _still(roster, names)), Path(place) / "fleet"
        setting = GateSetting(host, port, files, behind, passphrase=passphrase)
        with (
            serve_fleet(fleet, behind, logs / "flower.log"),
            gate_process(setting, logs / "gate.log") as listening,
        ):
            yield fleet, listening


def _still(roster: Path, before: Mapping[str, bytes]) -> Set[str]:
    """Return the names on the roster with the same key; unreadable files are ignored."""
    try:
        there = names_on(roster)
    except OSError:
        return before.keys()
    return {n for n, key in before.items() if n in there and not _has_another(roster, n, key)}


def _has_another(roster: Path, name: str, key: bytes) -> bool:
    try:
        return key_on(roster, name) != key
    except (OSError, UsageError):
        return False
