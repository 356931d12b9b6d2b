"""Flower's ServerApp: it uses Flower's grid on behalf of the process of ``ccfcpp serve``.

That process asks over a local socket. Each request is a line of JSON; bytes follow it where it says
so. The module imports no PyTorch.
"""

import json
import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from ccfcpp.deployment.link.flower import MESSAGE_TYPE, packet_of, record_of
from ccfcpp.deployment.link.packet import Packet, send

SERVER = "server"
"""Key of the run's configuration: the path of the server's socket."""

_LOOK = 2.0
"""Seconds between checks whether nodes have been started again."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve until the other process is gone."""
    with Client(str(context.run_config[SERVER]), "AF_UNIX") as server:
        relay(grid, server)


def relay(grid: Grid, server: Connection) -> None:
    """Handle one request after the other."""
    payload, starts = b"", _NodeStarts(grid)
    while True:
        try:
            request = json.loads(server.recv_bytes())
        except EOFError:
            return
        match request["do"]:
            case "online":
                nodes = {node.name: node.node_id for node in grid.get_nodes()}
                server.send_bytes(json.dumps(nodes).encode())
            case "payload":
                payload = server.recv_bytes()
            case "push":
                node, packet = int(request["node"]), Packet(server.recv_bytes(), payload)
                ticket = _push(grid, node, packet, float(request["seconds"]))
                starts.note(ticket, node)
                server.send_bytes(json.dumps(ticket).encode())
            case "pull":
                _pull(grid, str(request["ticket"]), starts, server)


class _NodeStarts:
    """When nodes were started. A node that is started again has lost its earlier messages.

    Flower tells that a node is gone only while it is away.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._asked: dict[str, tuple[int, str]] = {}
        self._looked = 0.0

    def note(self, ticket: str | None, node: int) -> None:
        """Record that a node has been sent a message."""
        if ticket is not None:
            self._asked[ticket] = node, self._now().get(node, "")

    def is_in_vain(self, ticket: str) -> bool:
        """Return whether the node has been started again since."""
        if time.monotonic() - self._looked < _LOOK:
            return False
        self._looked = time.monotonic()
        node, before = self._asked.get(ticket, (0, ""))
        return self._now().get(node, before) != before

    def forget(self, ticket: str) -> None:
        """Drop the record of a message that has been answered."""
        self._asked.pop(ticket, None)

    def _now(self) -> Mapping[int, str]:
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}


def _push(grid: Grid, node: int, packet: Packet, seconds: float) -> str | None:
    message = Message(record_of(packet), dst_node_id=node, message_type=MESSAGE_TYPE, ttl=seconds)
    # Flower returns None, or nothing, for a node that is gone.
    return next(iter(grid.push_messages([message])), None)


def _pull(grid: Grid, ticket: str, starts: _NodeStarts, server: Connection) -> None:
    in_vain = starts.is_in_vain(ticket)
    reply = next(iter(grid.pull_messages([ticket])), None)
    if reply is None:
        kind = "in vain" if in_vain else "nothing"
        server.send_bytes(json.dumps({"is": kind}).encode())
        return
    starts.forget(ticket)
    if reply.has_error():
        # Never the reason: it may be the text of a client's exception.
        server.send_bytes(json.dumps({"is": "error", "code": reply.error.code}).encode())
    else:
        try:
            packet = packet_of(reply)
        except ValueError:
            packet = Packet(b"")
        server.send_bytes(json.dumps({"is": "packet"}).encode())
        send(server, packet)
