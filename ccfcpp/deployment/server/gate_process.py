"""The gate in a process of its own.

So strangers who use up the gate's files, memory or time do not affect the run. The port
belongs to the process of the run: a gate that ends is started again, and callers wait meanwhile.
"""

import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from ccfcpp.deployment.server.gate_server import (
    TO_FINISH,
    GateSetting,
    check_setting,
    listening_at,
    serve_at,
)

_PAUSE = 0.5
"""Seconds before a gate is started again, so that one that cannot start is not tried for ever."""
_PATIENCE = 5.0
"""Seconds to wait for the port: the gate of a server that was killed may still be closing."""
_MOST_FILES = 16384
_SETTINGS = TypeAdapter(GateSetting)


@contextmanager
def gate_process(setting: GateSetting, log: Path) -> Iterator[int]:
    """Keep a gate open within the context, in a process of its own.

    Args:
        setting: The address of the gate, and the socket behind it.
        log: File for the process's output.

    Yields:
        The port on which it listens.

    Raises:
        UsageError: The port is taken, or a file cannot be used.
    """
    check_setting(setting)
    listening = listening_at(setting, _PATIENCE)
    with listening, closing(_Keeper(setting, listening, log)):
        port: int = listening.getsockname()[1]
        yield port


class _Keeper:
    """Keeps a process of the gate running."""

    def __init__(self, setting: GateSetting, listening: socket.socket, log: Path) -> None:
        self._setting, self._listening, self._log = setting, listening, log
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._process = self._started()
        self._thread = threading.Thread(target=self._keep, name="gate", daemon=True)
        self._thread.start()

    def _started(self) -> subprocess.Popen[bytes]:
        number = self._listening.fileno()
        setting = _SETTINGS.dump_json(self._setting, exclude={"passphrase"}).decode()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - this file
                [sys.executable, "-m", __name__, str(number), setting],
                # It ends when this pipe is closed, which the end of this process does, too.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[number],
                # Ctrl-C is for the process of the run.
                start_new_session=True,
            )
        if process.stdin is not None:
            # All users see the words of a command: a passphrase is none of them.
            with suppress(OSError):
                process.stdin.write(json.dumps(self._setting.passphrase).encode() + b"\n")
                process.stdin.flush()
        return process

    def _keep(self) -> None:
        while True:
            self._process.wait()
            if self._closing.wait(_PAUSE):
                return
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = self._started()

    def close(self) -> None:
        """End the process when its requests have ended."""
        with self._lock:  # No process is started any more.
            self._closing.set()
            process = self._process
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(2 * TO_FINISH)
        process.kill()
        self._thread.join()


def main(number: str, setting: str) -> None:
    """Serve at a socket of the starting process until it closes the standard input.

    The first line of that is the passphrase of the server's key, as JSON.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if most == resource.RLIM_INFINITY else min(_MOST_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    passphrase = json.loads(sys.stdin.buffer.readline())
    found = replace(_SETTINGS.validate_json(setting), passphrase=passphrase)
    with socket.socket(fileno=int(number)) as listening, serve_at(found, listening):
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
