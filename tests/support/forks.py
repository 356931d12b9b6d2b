"""Processes that start at once: each is a fork of one that has imported what is slow to import.

For tests that need a process of its own, such as one to be killed, and not what it imports.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_SLOW = (
    "faiss", "pydantic", "rich.console", "safetensors.torch", "scipy.optimize", "sklearn.cluster",
    "sklearn.datasets", "sklearn.metrics", "torch", "typer", "yaml",
)  # fmt: skip
"""Nothing of this package: what it imports depends on which others are installed."""
_MOST = 2**20
_STREAMS = 3


class Fork:
    """A process, as ``subprocess.Popen`` has it; what it writes is kept in files.

    Args:
        arguments: What would follow ``python``: ``-m`` and a module, or ``-c`` and a program; and
            its arguments.
        environment: Its variables. Those that libraries read as they load must be this process's.
        directory: Where it works.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._streams = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 - read later
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.connect(str(_server()))
        request = [[*map(str, arguments)], dict(environment), str(directory or Path.cwd())]
        with Path(os.devnull).open() as nothing:
            files = [nothing.fileno(), *(stream.fileno() for stream in self._streams)]
            socket.send_fds(self._link, [json.dumps(request).encode()], files)
        self.pid = int(self._line(None))

    def poll(self) -> int | None:
        """The status with which it ended; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.001)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, for so many seconds; then ``subprocess.TimeoutExpired``."""
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            self._link.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written to standard output and to standard error, once it has ended."""
        self.wait(timeout)
        texts = []
        for stream in self._streams:
            stream.seek(0)
            texts.append(stream.read().decode())
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def _line(self, timeout: float | None) -> bytes:
        self._link.settimeout(timeout)
        try:
            line = self._link.recv(64)
        except TimeoutError:
            raise subprocess.TimeoutExpired("a fork", timeout or 0) from None
        assert line, "the process that forks has gone"
        return line


@cache
def _server() -> Path:
    """Start the process that forks, for as long as this one runs."""
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "forks"
    process = subprocess.Popen([sys.executable, "-m", __name__, path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    atexit.register(folder.cleanup)
    atexit.register(process.kill)
    return path


def _serve(path: str) -> list[str]:
    """Fork whenever it is asked for; in a fork, return its arguments."""
    for name in _SLOW:
        importlib.import_module(name)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen()
    print("ready", flush=True)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is None:
                link, _ = listening.accept()
                request, files, _, _ = socket.recv_fds(link, _MOST, _STREAMS)
                pid = os.fork()
                if pid == 0:
                    listening.close()
                    link.close()
                    return _become(json.loads(request), files)
                for file in files:
                    os.close(file)
                link.sendall(str(pid).encode())
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, link))
            else:
                pid, link = key.data
                waiting.unregister(key.fd)
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):  # Nobody may wait for it any more.
                    link.sendall(str(status).encode())
                link.close()


def _become(request: Sequence[object], files: Sequence[int]) -> list[str]:
    """Take on what a new process would have from the one that starts it."""
    arguments, environment, directory = request
    for place, file in enumerate(files):
        os.dup2(file, place)
        os.close(file)
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    os.chdir(str(directory))
    os.environ.clear()
    os.environ.update(environment)
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = ["", *(each for each in given if each and each not in sys.path)]
    importlib.invalidate_caches()
    return arguments


def _run(kind: str, what: str, *arguments: str) -> None:
    if kind == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102 - a test's own


if __name__ == "__main__":
    _run(*_serve(sys.argv[1]))
