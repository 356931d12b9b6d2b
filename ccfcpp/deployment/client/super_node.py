"""Flower's SuperNode at a client, which is started again whenever it ends."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ccfcpp.deployment.link.processes import environment_of, flower_tool, free_port, running

_LOOK, _AGAIN = 0.5, 5.0
"""Seconds between checks whether the process runs, and before it is started again."""
_STABLE = 60.0
"""Seconds after which a process that ends is reported again, even for the same reason."""
_REASONS = {
    "[code: 2004]": "the server does not know the key, or the key is in use: give its .pub file to "
    "the server's owner for the roster (after a crash a key is in use for a minute)",
    "mismatch, certificate is not valid": "the server's certificate is for another name: "
    "give --server as the certificate has it",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of this authority: ask the "
    "server's owner for its ca.crt (--authority)",
}
"""What a SuperNode prints, and the reason for it."""


def super_node(
    home: Path, server: str, authority: Path, key: Path, worker: Path
) -> tuple[list[str], dict[str, str]]:
    """Return the command of a SuperNode that forwards messages to a worker, and its environment."""
    command = [
        *flower_tool("flower-supernode"),
        *("--root-certificates", str(authority.absolute()), "--superlink", server),
        *("--host", "127.0.0.1", "--port", str(free_port())),
        *("--auth-supernode-private-key", str(key.absolute())),
        *("--node-config", f"worker={json.dumps(str(worker.absolute()))}"),
    ]
    return command, environment_of(home)


@contextmanager
def kept_running(
    command: Sequence[str], environment: Mapping[str, str], log: Path, say: Callable[[str], None]
) -> Iterator[None]:
    """Run a SuperNode within the context, and start it again whenever it ends."""
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
            if line != said or time.monotonic() - began > _STABLE:
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
    """Return why a SuperNode has ended, from what it has printed after a position in its log."""
    with log.open("rb") as file:
        file.seek(place)
        text = file.read().decode(errors="replace")
    found = (reason for sign, reason in _REASONS.items() if sign in text)
    return next(found, f"the node has ended, see {log}")
