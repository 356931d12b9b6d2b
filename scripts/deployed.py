"""Cost of an exchange over several machines: Flower's processes, the gate and TLS on this one.

The clients send back at once what they receive, so the time is that of the transport alone.
"""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Listener
from pathlib import Path

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.client.super_node import super_node
from ccfcpp.deployment.keys.making import make_authority, make_client, make_server
from ccfcpp.deployment.link.packet import Packet, Undelivered, receive, send
from ccfcpp.deployment.link.processes import free_port, running
from ccfcpp.deployment.link.sockets import FlowerLink, listen
from ccfcpp.deployment.server.serving import open_server
from scripts.timing import Seconds, console, timed

SMALL, LARGE = 10_000, 14_000_000
"""Sizes of a payload in bytes."""
_TOOLS = {
    "flower-superlink": "SuperLink", "flwr-serverapp": "ServerApp", "flower-supernode": "SuperNode",
    "flwr-clientapp": "ClientApp", "flower-superexec": "SuperExec",
}  # fmt: skip
_LIFE, _POLL, _SAMPLE = 300.0, 0.05, 0.05
_FRESH = """
import ccfcpp.deployment.client.run, ccfcpp.deployment.client.worker
from scripts.deployed import peak_memory
print(peak_memory("self"))
"""
"""What a process would import that is started for each exchange, before it has any image."""


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
    with _federation(clients) as (link, nodes), _watched() as peaks:
        for name, size in sizes.items():
            title = f"deployed exchange of {name}, {clients} clients"
            for number in range(repeats + 1):
                payload = bytes([number]) * size
                taken = timed(partial(_ask, link, nodes, payload))
                console.print(f"{title}: {taken:.4g} s")
                if number > 0:
                    seconds.setdefault(title, []).append(taken)
    fresh = "start of a process that could work"
    seconds[fresh] = []
    for _ in range(repeats):
        began = time.monotonic()
        words = [sys.executable, "-c", _FRESH]
        done = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603
        seconds[fresh].append(time.monotonic() - began)
        peaks[fresh] = max(peaks.get(fresh, 0.0), float(done.stdout))
    return seconds, {f"peak memory of {name}, MB": value for name, value in peaks.items()}


def _ask(link: FlowerLink, nodes: Sequence[int], payload: bytes) -> None:
    tickets = [link.push(node, Packet(b"{}", payload), _LIFE) for node in nodes]
    for ticket in tickets:
        assert ticket is not None
        while (found := link.pull(ticket)) is None:
            time.sleep(_POLL)
        if isinstance(found, Undelivered) or found.payload != payload:
            raise FederationError(f"something else came back: {str(found)[:200]}")


def _echo(listener: Listener) -> None:
    with suppress(OSError, EOFError):
        while True:
            with listener.accept() as asking:
                send(asking, receive(asking))


@contextmanager
def _federation(clients: int) -> Iterator[tuple[FlowerLink, list[int]]]:
    """Run a server behind the gate, and nodes whose workers send back what they get."""
    with tempfile.TemporaryDirectory(prefix="ccfcpp-") as place, ExitStack() as stack:
        folder, port = Path(place), free_port()
        keys = folder / "keys"
        names = [f"c{number}" for number in range(clients)]
        make_authority(keys, 2)
        make_server(keys, "127.0.0.1", 2)
        for name in names:
            make_client(keys, name)
        link = stack.enter_context(
            open_server(keys, keys / "roster", "127.0.0.1", port, folder / "server")
        )
        for name in names:
            socket = folder / name / "worker"
            listener = stack.enter_context(listen(socket))
            threading.Thread(target=_echo, args=(listener,), daemon=True).start()
            key = keys / "clients" / f"{name}.key"
            node = super_node(
                folder / name / "flower", f"127.0.0.1:{port}", keys / "ca.crt", key, socket
            )
            stack.enter_context(running(*node, folder / name / "log"))
        while len(online := link.online()) < clients:
            time.sleep(_POLL)
        yield link, list(online.values())


@contextmanager
def _watched() -> Iterator[dict[str, float]]:
    """Sample the peak memory of Flower's processes, in MB, by their kind."""
    peaks: dict[str, float] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(_SAMPLE):
            for path in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    words = (path / "cmdline").read_bytes().split(b"\0")
                    names = [Path(word.decode(errors="replace")).name for word in words[:2]]
                    for name in names:
                        if kind := _TOOLS.get(name):
                            peaks[kind] = max(peaks.get(kind, 0.0), peak_memory(path.name))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()
