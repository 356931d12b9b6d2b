"""Gates, and what is before and behind them, in this process."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ccfcpp.deployment.server.gate_server import (
    GateSetting,
    check_setting,
    open_socket,
    serve_at,
)


@contextmanager
def served(app: ASGIApp, **where: Any) -> Iterator[uvicorn.Server]:
    """Serve an application, in a thread, at a Unix socket or a port."""
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, log_level="critical", timeout_graceful_shutdown=1,
        **where,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    yield server
    server.should_exit = True
    thread.join()


@contextmanager
def open_gate(setting: GateSetting) -> Iterator[int]:
    """Keep a gate open within the context, and say on which port it listens."""
    check_setting(setting)
    with open_socket(setting) as listening, serve_at(setting, listening):
        port: int = listening.getsockname()[1]
        yield port
