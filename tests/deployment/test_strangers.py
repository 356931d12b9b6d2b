"""Who must not get in, with real processes: a SuperLink behind the gate, and nodes that try."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import Queue

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

from ccfcpp.deployment.client.super_node import kept_running, super_node
from ccfcpp.deployment.keys.making import make_authority, make_client
from ccfcpp.deployment.link.processes import free_port
from ccfcpp.deployment.link.sockets import FlowerLink
from ccfcpp.deployment.server.gate import OPEN
from ccfcpp.deployment.server.serving import open_server
from tests.deployment.test_gate import trusting

SECONDS = 60


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A relative path, as users give them."""
    return Path(os.path.relpath(tmp_path_factory.mktemp("server")))


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def link(keys: Path, home: Path, port: int) -> Iterator[FlowerLink]:
    with open_server(keys, keys / "roster", "127.0.0.1", port, home) as link:
        yield link


def test_nobody_without_a_key_can_do_anything(
    keys: Path, home: Path, port: int, link: FlowerLink
) -> None:
    """With ``ca.crt`` alone, keys could be registered and runs started at the SuperLink itself."""
    log = home / "superlink.log"
    before = log.read_text().count("/v1/control/")
    assert before > 0  # by which the server has registered its own clients
    paths = {path for _, path in PROTOBUF_REQUEST_TYPES}
    assert {"/v1/control/start-run", "/v1/control/register-node"} <= paths
    headers = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    with httpx.Client(
        base_url=f"https://127.0.0.1:{port}", verify=trusting(keys), trust_env=False, timeout=30
    ) as stranger:
        for path in sorted(paths):
            reply = stranger.post(path, headers=headers)
            if path in OPEN.values():
                assert 400 <= reply.status_code < 500, path
            else:
                assert reply.status_code == 404, path
    assert log.read_text().count("/v1/control/") == before
    assert link.online() == {}


def test_a_wrong_key_and_a_wrong_authority_are_told_in_one_line(
    keys: Path, port: int, link: FlowerLink, tmp_path: Path
) -> None:
    other, worker = tmp_path / "other", tmp_path / "worker"
    make_authority(other, 2)
    make_client(other, "clinic-2")
    clients = {
        "the server does not know the key": (keys / "ca.crt", other / "clients" / "clinic-2.key"),
        "the server's certificate is not of this authority": (
            other / "ca.crt", keys / "clients" / "clinic-1.key"),
    }  # fmt: skip
    said: dict[str, Queue[str]] = {reason: Queue() for reason in clients}
    with ExitStack() as stack:
        for number, (reason, (authority, key)) in enumerate(clients.items()):
            home = tmp_path / str(number)
            command = super_node(home, f"127.0.0.1:{port}", authority, key, worker)
            stack.enter_context(kept_running(*command, home / "log", said[reason].put))
        for reason, lines in said.items():
            assert lines.get(timeout=SECONDS).startswith(reason)
    assert all(lines.empty() for lines in said.values())
    assert link.online() == {}
