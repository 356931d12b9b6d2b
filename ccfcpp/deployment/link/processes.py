"""Processes of Flower's tools, which end with the process that started them."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.link import process_guard

_TO_END = 10.0
"""Seconds that a process has to end."""


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def flower_tool(name: str) -> list[str]:
    """Return the command of one of Flower's tools."""
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise UsageError(f"{name} is not installed: pip install 'ccfcpp[flower]'")
    return [str(path)]


def environment_of(home: Path) -> dict[str, str]:
    """Return the environment of Flower's tools, whose files go to a folder."""
    home.mkdir(parents=True, exist_ok=True)
    own = {
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # Seconds between polls for a message to start a process for; Flower's default is 1. Each
        # poll costs some milliseconds of a core.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    }
    # Flower starts its own tools by their names.
    tools = str(Path(sys.executable).parent)
    return {**os.environ, **own, "PATH": os.pathsep.join([tools, os.environ.get("PATH", "")])}


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process within the context; it ends with all processes that it has started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 - Flower's own tools
            # It ends with this process, however that ends: a node that outlives its client would
            # keep the client's key in use.
            [sys.executable, "-I", "-S", process_guard.__file__, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Ctrl-C is for the process that supervises it.
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and all processes of the session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TO_END)
            if number == signal.SIGTERM:
                time.sleep(0.2)
    if process.stdin is not None:
        process.stdin.close()
