"""The processes of Flower: a SuperLink and its run at the server, a SuperNode at a client."""

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ccfcpp.core.errors import FederationError, UsageError
from ccfcpp.deployment.keys.names import PUBLIC_SUFFIX
from ccfcpp.deployment.link import process_guard

_TO_START, _TO_END = 60.0, 10.0
"""Seconds that a process has."""
_LOOK, _AGAIN = 0.5, 5.0
"""Seconds between looks whether a process runs, and before it is started again."""
_REASONS = {
    "[code: 2004]": "the server does not know the key, or the key is in use: give its .pub file to "
    "the server's owner for the roster (after a crash a key is in use for a minute)",
    "mismatch, certificate is not valid": "the server's certificate is for another name: "
    "give --server as the certificate has it",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of this authority: ask the "
    "server's owner for its ca.crt (--authority)",
}
"""What a SuperNode prints, and why."""
_BUNDLE = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "ccfcpp-deployment"
version = "1.0.0"
description = "Names installed modules, and holds no code: nodes run what is installed on them"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "ccfcpp"

[tool.flwr.app.components]
serverapp = "ccfcpp.deployment.server.app:app"
clientapp = "ccfcpp.deployment.client.app:app"

[tool.flwr.app.config]
server = ""
"""


@dataclass(frozen=True)
class ServerKeys:
    """Files of a server, as ``ccfcpp keys`` makes them.

    Attributes:
        certificate: The server's.
        key: Its private key.
        authority: The certificate of who signed it.
    """

    certificate: Path
    key: Path
    authority: Path

    @staticmethod
    def of(folder: Path) -> "ServerKeys":
        """Those in a folder.

        Raises:
            UsageError: One is missing.
        """
        found = ServerKeys(folder / "server.crt", folder / "server.key", folder / "ca.crt")
        for path in (found.certificate, found.key, found.authority):
            if not path.is_file():
                raise UsageError(f"{path} is missing: make keys with ccfcpp keys, or give --keys")
        return found


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def super_link(home: Path, keys: ServerKeys, roster: Path, server: Path) -> Iterator[int]:
    """A SuperLink on 127.0.0.1 that knows the roster, and a run whose ServerApp comes to a socket.

    Args:
        home: A folder of its own, for its configuration and its log.
        keys: The server's.
        roster: Folder of the clients' public keys.
        server: Path of the socket.

    Yields:
        Its port.

    Raises:
        FederationError: It does not start.
    """
    # Flower's tools work in that folder, and take paths from there.
    home = home.absolute()
    port, environment = free_port(), _environment(home)
    log = home / "superlink.log"
    _configure(home, port, keys.authority)
    command = [
        *_tool("flower-superlink"),
        *("--ssl-ca-certfile", str(keys.authority.absolute())),
        *("--ssl-certfile", str(keys.certificate.absolute())),
        *("--ssl-keyfile", str(keys.key.absolute())),
        *("--host", "127.0.0.1", "--port", str(port)),
        "--enable-supernode-auth",
        # Else it would run uv for each run.
        "--disable-runtime-dependency-installation",
    ]
    with running(command, environment, log) as process:
        _wait_for(port, process, log)
        for path in sorted(roster.glob(f"*{PUBLIC_SUFFIX}")):
            name = path.name.removesuffix(PUBLIC_SUFFIX)
            register = ["supernode", "register", str(path.absolute()), "serve", "--name", name]
            _flwr(register, environment, home)
        setting = f"server={json.dumps(str(server.absolute()))}"
        _flwr(["run", str(home / "bundle"), "serve", "--run-config", setting], environment, home)
        yield port


def super_node(
    home: Path, server: str, authority: Path, key: Path, worker: Path
) -> tuple[list[str], dict[str, str]]:
    """The command of a SuperNode that passes messages to a worker, and its environment.

    Args:
        home: A folder of its own.
        server: HOST:PORT of the server's gate.
        authority: The certificate of who signed the server's.
        key: The client's private key.
        worker: Path of the worker's socket.
    """
    command = [
        *_tool("flower-supernode"),
        *("--root-certificates", str(authority.absolute()), "--superlink", server),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--auth-supernode-private-key", str(key.absolute())),
        *("--node-config", f"worker={json.dumps(str(worker.absolute()))}"),
    ]
    return command, _environment(home)


@contextmanager
def kept_running(
    command: list[str], environment: dict[str, str], log: Path, say: Callable[[str], None]
) -> Iterator[None]:
    """A process that is started again whenever it ends, for as long as the context lasts.

    Args:
        command: A SuperNode's.
        environment: Its environment.
        log: Takes what it prints.
        say: Takes a line on why it has ended, once for as long as it is the same.
    """
    over = threading.Event()

    def supervise() -> None:
        said = ""
        while not over.is_set():
            began, place = time.monotonic(), log.stat().st_size if log.exists() else 0
            with running(command, environment, log) as process:
                while process.poll() is None and not over.wait(_LOOK):
                    pass
            if over.is_set():
                return
            line = f"{why_it_ended(log, place)}; it is tried again every {_AGAIN:g} s"
            if line != said or time.monotonic() - began > _TO_START:
                say(line)
            said = line
            over.wait(_AGAIN)

    thread = threading.Thread(target=supervise, name="supervisor", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def why_it_ended(log: Path, place: int = 0) -> str:
    """Why a SuperNode has ended, in a few words, from what it has printed since a place."""
    with log.open("rb") as file:
        file.seek(place)
        text = file.read().decode(errors="replace")
    found = (reason for sign, reason in _REASONS.items() if sign in text)
    return next(found, f"the node has ended, see {log}")


@contextmanager
def running(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, and all that it starts, for as long as the context lasts."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(  # noqa: S603 - Flower's own tools
            # It ends with this process, however that ends: a node that outlives its client would
            # keep the client's key.
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
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and whatever it has started."""
    import signal

    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TO_END)
            if number == signal.SIGTERM:
                time.sleep(0.2)
    if process.stdin is not None:
        process.stdin.close()


def _environment(home: Path) -> dict[str, str]:
    home.mkdir(parents=True, exist_ok=True)
    own = {
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        # Seconds from one look for a message to start a process for to the next; 1 otherwise. Each
        # look costs some milliseconds of a core.
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
    }
    # Flower starts its own tools by their names.
    tools = str(Path(sys.executable).parent)
    return {**os.environ, **own, "PATH": os.pathsep.join([tools, os.environ.get("PATH", "")])}


def _configure(home: Path, port: int, authority: Path) -> None:
    (home / "bundle").mkdir(parents=True, exist_ok=True)
    (home / "bundle" / "pyproject.toml").write_text(_BUNDLE)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "serve"\n\n[superlink.serve]\naddress = "127.0.0.1:{port}"\n'
        f"root-certificates = {json.dumps(str(authority.absolute()))}\n"
    )


def _tool(name: str) -> list[str]:
    path = Path(sys.executable).parent / name
    if not path.is_file():
        raise UsageError(f"{name} is not installed: pip install 'ccfcpp[flower]'")
    return [str(path)]


def _flwr(arguments: list[str], environment: dict[str, str], home: Path) -> None:
    command = [*_tool("flwr"), *arguments]
    done = subprocess.run(  # noqa: S603 - Flower's own tool
        command, env=environment, cwd=home, capture_output=True, text=True
    )
    with (home / "flwr.log").open("a") as log:
        log.write(f"{shlex.join(command)}\n{done.stdout}{done.stderr}\n")
    if done.returncode != 0:
        raise FederationError(f"flwr {arguments[0]} failed: see {home / 'flwr.log'}")


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _TO_START
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.2)
    raise FederationError(f"Flower's SuperLink does not start: see {log}")
