"""The gate's server: TLS on a port that the network sees, in a thread of this process."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.server.gate import MOST_BYTES, Gate

_TO_FINISH = 5
"""Seconds that requests have to end when the gate closes."""
_CONNECT, _ANSWER = 5.0, 60.0
"""Seconds that the SuperLink has, on the same machine, to take a connection and to answer."""
_KEEP = 2.0
"""Seconds that a connection to the SuperLink waits for another request. The SuperLink closes it
after five: a request must not meet one that is just being closed."""


@dataclass(frozen=True)
class GateSetting:
    """Where a gate stands.

    Attributes:
        host: Address on which it listens; ``0.0.0.0`` is all of IPv4, ``::`` all addresses.
        port: Port on which it listens; 0 takes a free one.
        certificate: The server's, as ``ccfcpp keys server`` makes it.
        key: The server's private key.
        authority: The authority's certificate, by which the SuperLink is known.
        superlink: Port of the SuperLink on 127.0.0.1, which has a certificate for that address.
        most_bytes: Most that a request's body may hold.
    """

    host: str
    port: int
    certificate: Path
    key: Path
    authority: Path
    superlink: int
    most_bytes: int = MOST_BYTES


@contextmanager
def open_gate(setting: GateSetting) -> Iterator[int]:
    """Keep a gate open for as long as the context lasts.

    Yields:
        The port on which it listens.

    Raises:
        UsageError: The port is taken, or a file cannot be used.
    """
    link = _link(setting)
    gate = Gate(link, setting.most_bytes)
    server = _server(setting, gate)
    with _listening(setting.host, setting.port) as listening:
        port: int = listening.getsockname()[1]

        async def serve() -> None:
            async with link:
                await server.serve(sockets=[listening])

        thread = threading.Thread(target=lambda: asyncio.run(serve()), name="gate", daemon=True)
        thread.start()
        try:
            yield port
        finally:
            gate.closing = server.should_exit = True
            thread.join()


def _link(setting: GateSetting) -> httpx.AsyncClient:
    """What reaches the SuperLink, and nothing else: no proxy, no redirections."""
    return httpx.AsyncClient(
        base_url=f"https://127.0.0.1:{setting.superlink}",
        verify=_trusting(setting.authority),
        # Nothing is unpacked on the way.
        headers={"accept-encoding": "identity"},
        timeout=httpx.Timeout(_ANSWER, connect=_CONNECT, pool=None),
        limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP),
        follow_redirects=False,
        trust_env=False,
    )


def _trusting(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise _unusable(authority, error) from error


def _server(setting: GateSetting, gate: Gate) -> uvicorn.Server:
    config = uvicorn.Config(
        gate,
        # The other implementation takes headers of any length, and hides absolute addresses.
        http="h11",
        ws="none",
        lifespan="off",
        ssl_certfile=setting.certificate,
        ssl_keyfile=setting.key,
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        log_level="error",
        timeout_graceful_shutdown=_TO_FINISH,
    )
    try:
        config.load()
    except OSError as error:
        raise _unusable(f"{setting.certificate} with {setting.key}", error) from error
    return uvicorn.Server(config)


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::")
    except (OSError, OverflowError, ValueError) as error:
        raise UsageError(
            f"cannot listen on port {port} of {host} ({error}): give another port or address"
        ) from error


def _unusable(what: object, error: OSError) -> UsageError:
    # OpenSSL's errors are OSErrors, too, and name no file.
    reason = error.strerror or str(error)
    return UsageError(f"{what} cannot be used for TLS ({reason}): make them with ccfcpp keys")
