"""The two ends of local sockets: a worker that is asked, and a server that asks."""

import json
from collections.abc import Callable
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.link.packet import Packet, receive, send
from ccfcpp.deployment.server.transport import Undelivered


def listen(path: Path) -> Listener:
    """A socket in a folder that only its owner may enter."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    return Listener(str(path), "AF_UNIX", backlog=8)


def answer_forever(listener: Listener, answer: Callable[[Packet], Packet]) -> None:
    """Answer one packet after the other; a process that goes away in between does no harm."""
    while True:
        try:
            with listener.accept() as asking:
                send(asking, answer(receive(asking)))
        except (EOFError, OSError):
            continue


class FlowerLink:
    """The engine's link over Flower: it asks the ServerApp, which has the grid.

    Args:
        listener: Where the ServerApp comes to.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._app: Connection | None = None
        self._payload: bytes | None = None

    def online(self) -> dict[str, int]:
        """The nodes that are there, by the name under which their key was registered."""
        nodes = self._ask({"do": "online"})
        return {str(name): int(node) for name, node in nodes.items()}

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Send a packet; a payload that goes to several nodes passes the socket once."""
        if packet.payload != self._payload:
            self._send({"do": "payload"}, packet.payload)
            self._payload = packet.payload
        self._send({"do": "push", "node": node, "seconds": seconds}, packet.header)
        ticket: str | None = self._heard()
        return ticket

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """The answer to a packet; None where there is none yet."""
        found = self._ask({"do": "pull", "ticket": ticket})
        if found["is"] == "nothing":
            return None
        if found["is"] == "in vain":
            return Undelivered("its node has been started again")
        if found["is"] == "error":
            return Undelivered(f"its node has failed (Flower's error {int(found['code'])})")
        return receive(self._server_app())

    def close(self) -> None:
        """The ServerApp ends."""
        if self._app is not None:
            self._app.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        self._send(request)
        return self._heard()

    def _send(self, request: dict[str, Any], content: bytes | None = None) -> None:
        try:
            app = self._server_app()
            app.send_bytes(json.dumps(request).encode())
            if content is not None:
                app.send_bytes(content)
        except OSError as error:
            raise _gone() from error

    def _heard(self) -> Any:
        try:
            return json.loads(self._server_app().recv_bytes())
        except (EOFError, OSError) as error:
            raise _gone() from error

    def _server_app(self) -> Connection:
        if self._app is None:
            self._app = self._listener.accept()
        return self._app


def _gone() -> FederationError:
    return FederationError("Flower's ServerApp has ended: go on with --resume")
