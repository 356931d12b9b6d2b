"""Cost of an exchange over several machines: the gate, TLS and the clients' processes on this one.

The clients send back at once what they receive, so the time is that of the transport alone.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.keys.making import make_authority, make_client, make_server
from ccfcpp.deployment.link.packet import Link, Packet, Undelivered
from ccfcpp.deployment.server.serving import open_server
from scripts.timing import Seconds, console, timed

SMALL, LARGE = 10_000, 14_000_000
"""Sizes of a payload in bytes."""
_LIFE, _POLL = 300.0, 0.02
_CLIENT = """
import sys
from pathlib import Path
import ccfcpp.deployment.client.worker  # as a client has it
from rich.console import Console
from ccfcpp.cli.telling import Telling
from ccfcpp.deployment.client.fleet import FleetClient
from ccfcpp.deployment.keys.certificates import read_key
server, authority, key = sys.argv[1:]
tells = Telling(Console(quiet=True))
FleetClient(server, Path(authority), read_key(Path(key)), lambda packet: packet, tells).run()
"""


def peak_memory(process: str) -> float:
    """Return the peak memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    lines = (line.split() for line in status.splitlines())
    return next((int(line[1]) / 1000 for line in lines if line[0] == "VmHWM:"), 0.0)


def deployed(clients: int, repeats: int) -> tuple[Seconds, dict[str, float]]:
    """Measure exchanges with all clients at once, in seconds, and the peak memory of each process.

    Args:
        clients: Number of clients.
        repeats: Number of measured exchanges of each size, after a warm-up.
    """
    sizes = {"10 kB": SMALL, "14 MB": LARGE}
    seconds: Seconds = {}
    peaks: dict[str, float] = {}
    with _federation(clients) as (link, nodes, processes):
        for name, size in sizes.items():
            title = f"deployed exchange of {name}, {clients} clients"
            for number in range(repeats + 1):
                payload = bytes([number]) * size
                taken = timed(partial(_ask, link, nodes, payload))
                console.print(f"{title}: {taken:.4g} s")
                if number > 0:
                    seconds.setdefault(title, []).append(taken)
        peaks["client"] = max(peak_memory(str(process.pid)) for process in processes)
    peaks["server"] = peak_memory("self")
    return seconds, {f"peak memory of a {name}, MB": value for name, value in peaks.items()}


def _ask(link: Link, nodes: Sequence[int], payload: bytes) -> None:
    tickets = [link.push(node, Packet(b"{}", payload), _LIFE) for node in nodes]
    for ticket in tickets:
        assert ticket is not None
        while (found := link.pull(ticket)) is None:
            time.sleep(_POLL)
        if isinstance(found, Undelivered) or found.payload != payload:
            raise FederationError(f"something else came back: {str(found)[:200]}")


@contextmanager
def _federation(
    clients: int,
) -> Iterator[tuple[Link, list[int], list[subprocess.Popen[bytes]]]]:
    """Run a server behind the gate, and processes of clients that send back what they get."""
    with tempfile.TemporaryDirectory(prefix="ccfcpp-") as place, ExitStack() as stack:
        folder = Path(place)
        keys = folder / "keys"
        make_authority(keys, 2)
        make_server(keys, "127.0.0.1", 2)
        names = [f"c{number}" for number in range(clients)]
        for name in names:
            make_client(keys, name)
        link, port = stack.enter_context(
            open_server(keys, keys / "roster", "127.0.0.1", 0, folder / "server")
        )
        processes = []
        for name in names:
            key = keys / "clients" / f"{name}.key"
            words = f"127.0.0.1:{port}", str(keys / "ca.crt"), str(key)
            process = subprocess.Popen([sys.executable, "-c", _CLIENT, *words])  # noqa: S603
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        while len(online := link.online()) < clients:
            if any(process.poll() is not None for process in processes):
                raise FederationError("the process of a client has ended; its error is above")
            time.sleep(_POLL)
        yield link, list(online.values()), processes
