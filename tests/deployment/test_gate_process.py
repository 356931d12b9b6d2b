"""The gate in a process of its own: it serves, comes back when killed, and ends with the run."""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("httpx")

import httpx

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.files import ServerKeys
from ccfcpp.deployment.server.gate_process import gate_process
from ccfcpp.deployment.server.gate_server import GateSetting
from tests.deployment.test_gate import PULL, FakeFleet, client_of, served


@pytest.fixture
def setting(keys: Path) -> Iterator[GateSetting]:
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory() as folder, served(FakeFleet(), Path(folder) / "f") as path:
        yield GateSetting("127.0.0.1", 0, ServerKeys.of(keys), path)


def processes_for(setting: GateSetting) -> list[int]:
    """The processes of the gate, by what they were started with."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (folder / "cmdline").exists():
            command = (folder / "cmdline").read_bytes()
            if b"gate_process" in command and str(setting.behind).encode() in command:
                found.append(int(folder.name))
    return found


def answered(keys: Path, port: int) -> bytes:
    with client_of(keys, port) as client:
        return client.post(PULL, content=b"a", timeout=60).content


def test_it_serves_and_comes_back_when_it_is_killed(
    keys: Path, tmp_path: Path, setting: GateSetting
) -> None:
    with gate_process(setting, tmp_path / "gate.log") as port:
        assert answered(keys, port) == b"answer to a"
        (first,) = processes_for(setting)
        os.kill(first, signal.SIGKILL)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                assert answered(keys, port) == b"answer to a"
                break
            except httpx.HTTPError:
                time.sleep(0.2)
        else:
            pytest.fail("the gate did not come back")
        (second,) = processes_for(setting)
        assert second != first
    assert processes_for(setting) == []
    with pytest.raises(httpx.ConnectError):
        answered(keys, port)


def test_what_cannot_be_used_is_refused_at_once(
    keys: Path, tmp_path: Path, setting: GateSetting
) -> None:
    wrong = replace(setting, keys=replace(setting.keys, key=keys / "none"))
    with (
        pytest.raises(UsageError, match="cannot be used for TLS"),
        gate_process(wrong, tmp_path / "gate.log"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="cannot listen on port"),
        gate_process(replace(setting, host="192.0.2.1"), tmp_path / "gate.log"),
    ):
        pass
    assert not (tmp_path / "gate.log").exists()
