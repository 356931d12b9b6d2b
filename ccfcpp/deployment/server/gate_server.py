"""The HTTPS server of the gate (the reverse proxy for clients), on a public port."""

import asyncio
import errno
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import uvicorn

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.server.connections import ConnectionLimiter
from ccfcpp.deployment.server.gate import HTTP_SERVER, Gate

TO_FINISH = 5
"""Seconds within which requests must end when the gate closes."""
_TICK = 0.1
"""Seconds between checks whether the gate closes."""
_CONNECT, _ANSWER = 5.0, 60.0
"""Time limits for the fleet to accept a connection and to respond, in seconds."""
_KEEP = 2.0
"""Seconds for which an idle connection to the fleet is kept; less than the five after which the
fleet closes it, so that no request uses a connection that is being closed."""


@dataclass(frozen=True)
class GateSetting:
    """Address and keys of a gate, the server's reverse proxy.

    Attributes:
        host: Address to listen on; ``0.0.0.0``: all of IPv4, ``::``: all addresses.
        port: Port to listen on; 0: any free one.
        certificate: Path of the server's certificate.
        key: Path of its private key.
        behind: Path of the Unix socket to which the gate forwards calls.
        passphrase: Passphrase of the server's key; None if it is not encrypted.
    """

    host: str
    port: int
    certificate: Path
    key: Path
    behind: Path
    passphrase: str | None = field(default=None, repr=False)


@contextmanager
def serve_at(setting: GateSetting, listening: socket.socket) -> Iterator[None]:
    """Run a gate (HTTPS proxy) on a listening socket, in a thread, within the context."""
    link = _client(setting)
    gate = Gate(link)
    server = _server(setting, gate)

    async def serve() -> None:
        async with link:
            limiter = ConnectionLimiter(server)
            accepting = asyncio.create_task(limiter.accept(listening))
            serving = asyncio.create_task(server.serve(sockets=[]))
            while not (server.should_exit or serving.done()):
                await asyncio.sleep(_TICK)
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            # Free the port for the next server before the last requests end.
            listening.close()
            await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="gate", daemon=True)
    thread.start()
    try:
        yield
    finally:
        gate.closing = server.should_exit = True
        thread.join()


def check_setting(setting: GateSetting) -> None:
    """Check that the server's key files can be used for TLS.

    Raises:
        UsageError: A file is missing, or is not a certificate or its key.
    """
    _server(setting, Gate(_client(setting)))


def _client(setting: GateSetting) -> httpx.AsyncClient:
    """Return an HTTP client for the socket behind the gate, without proxy and redirections."""
    return httpx.AsyncClient(
        base_url="http://fleet",
        transport=httpx.AsyncHTTPTransport(
            uds=str(setting.behind),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP),
        ),
        # Bodies are forwarded unchanged.
        headers={"accept-encoding": "identity"},
        timeout=httpx.Timeout(_ANSWER, connect=_CONNECT, pool=None),
        follow_redirects=False,
    )


def _server(setting: GateSetting, gate: Gate) -> uvicorn.Server:
    certificate, key = setting.certificate, setting.key
    config = uvicorn.Config(
        gate,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_keyfile_password=setting.passphrase,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=TO_FINISH,
        **HTTP_SERVER,
    )
    try:
        config.load()
    except OSError as error:
        # OpenSSL's errors are OSErrors, too, and name no file.
        raise UsageError(
            f"{certificate} with {key} cannot be used for TLS ({error.strerror or error}): make "
            "them with ccfcpp keys"
        ) from error
    return uvicorn.Server(config)


def open_socket(setting: GateSetting, patience: float = 0.0) -> socket.socket:
    """Return a listening socket on the address and port of a gate.

    Args:
        setting: Settings of the gate.
        patience: Seconds to wait for a port that is in use.

    Raises:
        UsageError: The port is in use, or the address is not one of this machine.
    """
    host, port = setting.host, setting.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    until = time.monotonic() + patience
    while True:
        try:
            return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
        except (OSError, OverflowError, ValueError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            if not taken or time.monotonic() >= until:
                raise UsageError(
                    f"cannot listen on port {port} of {host} ({error}): "
                    "give another port or address"
                ) from error
            time.sleep(_TICK)
