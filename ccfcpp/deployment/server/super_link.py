"""Flower's SuperLink at the server, and the run that it starts."""

import json
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.keys.files import PUBLIC_SUFFIX, ServerKeys
from ccfcpp.deployment.link.processes import environment_of, flower_tool, free_port, running

_TO_START = 60.0
"""Seconds that a SuperLink has to start."""
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


@contextmanager
def super_link(home: Path, keys: ServerKeys, roster: Path, server: Path) -> Iterator[int]:
    """Run a SuperLink on 127.0.0.1 that admits the roster, and start a run on it.

    Yields:
        The port of the SuperLink.
    """
    # Flower's tools work in that folder, and resolve paths there.
    home = home.absolute()
    port, environment = free_port(), environment_of(home)
    log = home / "superlink.log"
    _configure(home, port, keys.authority)
    command = [
        *flower_tool("flower-superlink"),
        *("--ssl-ca-certfile", str(keys.authority.absolute())),
        *("--ssl-certfile", str(keys.certificate.absolute())),
        *("--ssl-keyfile", str(keys.key.absolute())),
        *("--host", "127.0.0.1", "--port", str(port)),
        "--enable-supernode-auth",
        # Otherwise it would run uv for each run.
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


def _configure(home: Path, port: int, authority: Path) -> None:
    (home / "bundle").mkdir(parents=True, exist_ok=True)
    (home / "bundle" / "pyproject.toml").write_text(_BUNDLE)
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "serve"\n\n[superlink.serve]\naddress = "127.0.0.1:{port}"\n'
        f"root-certificates = {json.dumps(str(authority.absolute()))}\n"
    )


def _flwr(arguments: list[str], environment: Mapping[str, str], home: Path) -> None:
    command = [*flower_tool("flwr"), *arguments]
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
