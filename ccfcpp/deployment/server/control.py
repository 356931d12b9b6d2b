"""Requests to a running server from its operator, over a Unix socket in the run's folder.

The socket lies in a folder that only its owner may enter. A request is one line of text; the answer
is one line of JSON.
"""

import json
import os
import shutil
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ccfcpp.core.errors import UsageError
from ccfcpp.runs.paths import Json, RunPaths, writable

REQUESTS = "status", "stop", "stop now"
_SOCKET = "control"
_SECONDS = 10.0
"""Timeout of either side, in seconds."""
_MOST_LETTERS = 64
_MOST_PATH = 100
"""Longest path of a Unix socket, in bytes, that every system accepts."""
_POLL = 0.1
_NOBODY = FileNotFoundError, NotADirectoryError, ConnectionRefusedError
"""Errors of a connection where no server is running."""


@contextmanager
def serve_control(run: Path, answer: Callable[[str], Json]) -> Iterator[Path]:
    """Answer an operator's requests, over a socket in the run's folder, within the context.

    Args:
        run: Folder of the run; created if it is missing.
        answer: Returns the answer to one of ``REQUESTS``.

    Yields:
        The server's folder, inside the run's. If no run has begun by the end of the context, both
        folders are deleted.

    Raises:
        UsageError: A server is running in this folder already, or the folder cannot be written.
    """
    paths = RunPaths(run)
    new = [path for path in (run, *run.parents) if not path.exists()]
    if _is_answered(run):
        raise UsageError(f"a server is running in {run} already: ccfcpp status {run}")
    try:
        with writable(run):
            paths.server.mkdir(mode=0o700, exist_ok=True)
            paths.server.chmod(0o700)
            (paths.server / _SOCKET).unlink(missing_ok=True)
        with _listen(paths.server, answer):
            yield paths.server
    finally:
        if not paths.config.exists():
            shutil.rmtree(paths.server, ignore_errors=True)
            with suppress(OSError):
                for path in new:
                    path.rmdir()


@contextmanager
def _listen(folder: Path, answer: Callable[[str], Json]) -> Iterator[None]:
    class Handler(socketserver.StreamRequestHandler):
        timeout = _SECONDS

        def handle(self) -> None:
            with suppress(OSError):
                request = self.rfile.readline(_MOST_LETTERS).decode(errors="replace").strip()
                reply = answer(request) if request in REQUESTS else {}
                self.wfile.write(json.dumps(reply).encode() + b"\n")

    with _short_path(folder) as place:
        server = socketserver.ThreadingUnixStreamServer(place, Handler)
    (folder / _SOCKET).chmod(0o600)
    server.daemon_threads = True
    serving = threading.Thread(
        target=server.serve_forever, args=(_POLL,), name="control", daemon=True
    )
    serving.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        (folder / _SOCKET).unlink(missing_ok=True)


def ask(run: Path, request: str) -> Json:
    """Send one of ``REQUESTS`` to the server of the run in folder ``run``; return its answer.

    Raises:
        UsageError: No server is running in the folder ``run``, or it does not answer.
    """
    paths = RunPaths(run)
    try:
        with _short_path(paths.server) as place, socket.socket(socket.AF_UNIX) as calling:
            calling.settimeout(_SECONDS)
            calling.connect(place)
            calling.sendall(request.encode() + b"\n")
            with calling.makefile("rb") as file:
                answer: Any = json.loads(file.readline())
    except _NOBODY as error:
        raise UsageError(f"no server is running in {run}: {_hint(paths)}") from error
    except PermissionError as error:
        raise UsageError(f"the server in {run} is another user's: ask as that user") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"the server in {run} does not answer ({error}): try again") from error
    return dict(answer)


def _hint(paths: RunPaths) -> str:
    """Return what the operator can do with a folder in which no server is running."""
    run = paths.path
    if paths.summary.is_file():
        return f"its run has ended; ccfcpp report {run} shows it"
    if paths.config.is_file():
        return f"its run was stopped, and goes on with ccfcpp serve --out {run} --resume"
    return "give the folder of a run, as ccfcpp serve --out has it"


def _is_answered(run: Path) -> bool:
    try:
        ask(run, "status")
    except UsageError as error:
        return not isinstance(error.__cause__, _NOBODY)
    return True


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """Yield a path of the socket in a folder that is short enough for the system."""
    path = str(folder / _SOCKET)
    if len(os.fsencode(path)) <= _MOST_PATH:
        yield path
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{number}/{_SOCKET}"
    finally:
        os.close(number)
