"""A server of the federation: a SuperLink, the gate before it, and the link to the clients."""

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ccfcpp.deployment.keys.files import ServerKeys
from ccfcpp.deployment.keys.roster import read_roster
from ccfcpp.deployment.link.sockets import FlowerLink, listen
from ccfcpp.deployment.server.gate_process import gate_process
from ccfcpp.deployment.server.gate_server import GateSetting
from ccfcpp.deployment.server.super_link import super_link


@contextmanager
def open_server(keys: Path, roster: Path, host: str, port: int, home: Path) -> Iterator[FlowerLink]:
    """Run a SuperLink behind the gate within the context.

    Yields:
        The link to the clients.
    """
    files = ServerKeys.of(keys)
    read_roster(roster)
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ccfcpp-") as place:
        path = Path(place) / "server"
        with (
            listen(path) as listener,
            super_link(home, files, roster, path) as behind,
            gate_process(GateSetting(host, port, files, behind), home / "gate.log"),
            closing(FlowerLink(listener)) as link,
        ):
            yield link
