"""Local sockets: a worker that answers packets, and a server that asks Flower's ServerApp."""

import json
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path

from ccfcpp.core.errors import FederationError
from ccfcpp.deployment.link.packet import Packet, Undelivered, receive, send


def listen(path: Path) -> Listener:
    """Open a socket in a folder that only its owner may enter."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    return Listener(str(path), "AF_UNIX", backlog=8)


def answer_forever(listener: Listener, answer: Callable[[Packet], Packet]) -> None:
    """Answer one packet after the other. A process that disconnects in between does no harm."""
    while True:
        try:
            with listener.accept() as asking:
                send(asking, answer(receive(asking)))
        except (EOFError, OSError):
            continue


class FlowerLink:
    """The ``Link`` over Flower: it asks the ServerApp, which has access to Flower's grid."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._app: Connection | None = None
        self._payload: bytes | None = None

    def online(self) -> dict[str, int]:
        """Return the nodes that are online, by the name under which their key is registered."""
        self._send({"do": "online"})
        return {str(name): int(node) for name, node in json.loads(self._received()).items()}

    def push(self, node: int, packet: Packet, seconds: float) -> str | None:
        """Send a packet. A payload that goes to several nodes passes the socket once."""
        if packet.payload != self._payload:
            self._send({"do": "payload"}, packet.payload)
            self._payload = packet.payload
        self._send({"do": "push", "node": node, "seconds": seconds}, packet.header)
        ticket: str | None = json.loads(self._received())
        return ticket

    def pull(self, ticket: str) -> Packet | Undelivered | None:
        """Return the response to a packet; None if there is none yet."""
        self._send({"do": "pull", "ticket": ticket})
        found = json.loads(self._received())
        if found["is"] == "nothing":
            return None
        if found["is"] == "in vain":
            return Undelivered("its node has been started again")
        if found["is"] == "error":
            return Undelivered(f"its node has failed (Flower's error {int(found['code'])})")
        return receive(self._server_app())

    def close(self) -> None:
        """Let the ServerApp end."""
        if self._app is not None:
            self._app.close()

    def _send(self, request: Mapping[str, object], content: bytes | None = None) -> None:
        try:
            app = self._server_app()
            app.send_bytes(json.dumps(request).encode())
            if content is not None:
                app.send_bytes(content)
        except OSError as error:
            raise _gone() from error

    def _received(self) -> bytes:
        try:
            return self._server_app().recv_bytes()
        except (EOFError, OSError) as error:
            raise _gone() from error

    def _server_app(self) -> Connection:
        if self._app is None:
            self._app = self._listener.accept()
        return self._app


def _gone() -> FederationError:
    return FederationError("Flower's ServerApp has ended: go on with --resume")
