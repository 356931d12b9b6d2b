"""Gates in this process."""

from collections.abc import Iterator
from contextlib import contextmanager

from ccfcpp.deployment.server.gate_server import (
    GateSetting,
    check_setting,
    listening_at,
    serve_at,
)


@contextmanager
def open_gate(setting: GateSetting) -> Iterator[int]:
    """Keep a gate open within the context, and say on which port it listens."""
    check_setting(setting)
    with listening_at(setting) as listening, serve_at(setting, listening):
        port: int = listening.getsockname()[1]
        yield port
