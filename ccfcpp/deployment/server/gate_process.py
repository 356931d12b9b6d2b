"""The gate (the server's proxy) as a process, so that attacks do not use up the run's resources.

The port belongs to the process of the run. If the gate ends, it is started again, and clients wait
meanwhile.
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
    open_socket,
    serve_at,
)

_PAUSE = 0.5
"""Seconds before a gate that has ended is started again."""
_PATIENCE = 5.0
"""Seconds to wait for the port, which the gate of a killed server may still use."""
_MOST_FILES = 16384
_SETTINGS = TypeAdapter(GateSetting)


@contextmanager
def gate_process(setting: GateSetting, log: Path) -> Iterator[int]:
    """Run a gate (the server's reverse proxy) within the context, in a process of its own.

    Args:
        setting: The gate's address and keys.
        log: File for the process's output.

    Yields:
        The port on which the gate listens.

    Raises:
        UsageError: The port is in use, or a key file cannot be used.
    """
    check_setting(setting)
    listening = open_socket(setting, _PATIENCE)
    with listening, closing(_GateProcess(setting, listening, log)):
        port: int = listening.getsockname()[1]
        yield port


class _GateProcess:
    """The process of a gate (the server's proxy); until ``close`` it is restarted if it ends."""

    def __init__(self, setting: GateSetting, listening: socket.socket, log: Path) -> None:
        self._setting, self._listening, self._log = setting, listening, log
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._process = self._start_process()
        self._thread = threading.Thread(target=self._restart, name="gate", daemon=True)
        self._thread.start()

    def _start_process(self) -> subprocess.Popen[bytes]:
        number = self._listening.fileno()
        setting = _SETTINGS.dump_json(self._setting, exclude={"passphrase"}).decode()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - this file
                [sys.executable, "-m", __name__, str(number), setting],
                # The gate ends when this pipe is closed, also if this process is killed.
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[number],
                # Ctrl-C must not reach the gate.
                start_new_session=True,
            )
        if process.stdin is not None:
            # Not as an argument, since all users can see command lines.
            with suppress(OSError):
                process.stdin.write(json.dumps(self._setting.passphrase).encode() + b"\n")
                process.stdin.flush()
        return process

    def _restart(self) -> None:
        while True:
            self._process.wait()
            if self._closing.wait(_PAUSE):
                return
            with self._lock:
                if self._closing.is_set():
                    return
                self._process = self._start_process()

    def close(self) -> None:
        """End the process once its requests have ended, or after a time limit."""
        with self._lock:  # No new process is started from here on.
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
    """Run the gate (the server's proxy) until the standard input is closed.

    The first line of the input is the passphrase of the server's key, as JSON.

    Args:
        number: File descriptor of the listening socket.
        setting: The ``GateSetting`` without passphrase, as JSON.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MOST_FILES if most == resource.RLIM_INFINITY else min(_MOST_FILES, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    passphrase = json.loads(sys.stdin.buffer.readline())
    restored = replace(_SETTINGS.validate_json(setting), passphrase=passphrase)
    with socket.socket(fileno=int(number)) as listening, serve_at(restored, listening):
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
