"""Limits for connections to the gate (the server's proxy): their number, and time for a request.

uvicorn has neither limit: it waits for the header of a request without a timeout, and a connection
without TLS handshake occupies a file descriptor for a minute. So connections are accepted here.
"""

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_CONNECTIONS, _FROM_ONE = 1000, 250
"""Largest number of connections, lower if the process may open too few files; and of those from
one address."""
_PATIENCE = 10.0
"""Time limit for a TLS handshake and for the header of each request, in seconds."""
_FILES_OF_A_CONNECTION = 4
"""File descriptors for each connection: its own, the one to the fleet, and two in reserve."""
_FULL = 0.1
"""Seconds to wait if there are no more file descriptors."""


class ConnectionLimiter:
    """Accepts connections, within limits, for a uvicorn server that does not listen itself."""

    def __init__(self, server: uvicorn.Server) -> None:
        self.server = server
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(_CONNECTIONS, files // _FILES_OF_A_CONNECTION)
        self._open: Counter[str] = Counter()
        self._starting: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections from a listening socket until cancelled; close those over a limit."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                connection, (address, *_) = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(_FULL)
                continue
            if self.server.should_exit or self._is_full(address):
                connection.close()
                continue
            self._open[address] += 1
            task = loop.create_task(self._start(connection, address))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    def _is_full(self, address: str) -> bool:
        return self._open.total() >= self._most or self._open[address] >= _FROM_ONE

    async def _start(self, connection: socket.socket, address: str) -> None:
        """Perform the TLS handshake, and pass the connection to uvicorn."""
        config = self.server.config

        def end() -> None:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]

        state = self.server.server_state, self.server.lifespan.state
        protocol = TimedProtocol(config, *state, end)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=config.ssl,
                ssl_handshake_timeout=_PATIENCE,
            )
        except (OSError, TimeoutError):  # no TLS, or not in time
            with suppress(OSError):
                connection.close()
            if not protocol.made:
                end()


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, with a deadline for the header of each request.

    If a header takes over ``_PATIENCE`` seconds, the connection is closed; then ``end`` is called.

    Attributes:
        made: Whether the connection was established.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        end: Callable[[], None],
    ) -> None:
        super().__init__(config, server_state, app_state)
        self.made = False
        self._end = end
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request."""
        self.made = True
        super().connection_made(transport)
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request, and cancel the deadline if its header is complete."""
        super().data_received(data)
        self._update_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline, and call the given ``end``, since the connection has ended."""
        self._cancel_deadline()
        self._end()
        super().connection_lost(exc)

    def _update_deadline(self) -> None:
        """Start the deadline if a request's header is awaited; cancel it once that is complete."""
        if self.conn.their_state is not h11.IDLE:
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(_PATIENCE, self._abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _abort(self) -> None:
        self.transport.abort()
