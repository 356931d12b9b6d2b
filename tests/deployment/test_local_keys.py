"""``--insecure``: a federation on one machine whose keys are made by themselves."""

import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from ccfcpp.core.errors import UsageError
from tests.support.command import ccfcpp, succeeded

pytest.importorskip("flwr")

from ccfcpp.core.files import locked
from ccfcpp.deployment.client.fleet import FleetClient
from ccfcpp.deployment.keys.local import free_key, make_local_keys
from ccfcpp.deployment.keys.roster import read_roster
from tests.support.processes import Processes, bounded


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["serve", "--clients", 2, "--listen", "0.0.0.0:9092"], "0.0.0.0 is not its own address"),
        (["serve", "--clients", 2, "--listen", "[::]:9092"], ":: is not its own address"),
        (["serve", "--clusters", 3], "say how many with --clients N"),
        (["serve", "--clients", 2, "--roster", "keys/roster"], "leave --roster out"),
        (["join", "--data", ".", "--server", "10.0.0.1:9092"], "10.0.0.1 is not its own address"),
        (["join", "--data", ".", "--authority", "ca.crt"], "leave --authority out"),
        (["join", "--data", "."], "there are no keys in keys/trial"),
    ],
)
def test_it_is_for_this_machine(
    command: list[object], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = ccfcpp(*command, "--insecure")
    assert result.code == 2
    assert complaint in result.stderr
    assert not list(tmp_path.iterdir())


def test_without_it_keys_are_asked_for(tmp_path: Path) -> None:
    assert "--server is missing" in ccfcpp("join", "--data", tmp_path).stderr
    result = ccfcpp("join", "--data", tmp_path, "--server", "127.0.0.1:9092")
    assert result.code == 2
    assert "--key is missing" in result.stderr


def test_its_keys_are_made_once_and_are_the_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    make_local_keys(folder, 2)
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}
    make_local_keys(folder, 12)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert len(read_roster(folder / "roster")) == 12
    private = [*folder.rglob("*.key")]
    assert len(private) == 2 + 12
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}


def test_each_client_takes_a_key_that_nobody_has(tmp_path: Path) -> None:
    make_local_keys(tmp_path, 2)
    with free_key(tmp_path) as first, free_key(tmp_path) as second:
        assert [first.stem, second.stem] == ["client-1", "client-2"]
        with pytest.raises(UsageError, match="all 2 keys in"), free_key(tmp_path):
            pass
    with free_key(tmp_path) as again:
        assert again == first


def test_what_a_client_keeps_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_local_keys(tmp_path, 1)
    monkeypatch.setattr(FleetClient, "run", lambda client: None)
    key, before = tmp_path / "clients" / "client-1.key", signal.getsignal(signal.SIGTERM)
    mask = os.umask(0)
    try:
        where = "--server", "127.0.0.1:1", "--authority", tmp_path / "ca.crt"
        succeeded("join", "--key", key, *where, "--data", tmp_path)
    finally:
        os.umask(mask)
        signal.signal(signal.SIGTERM, before)
    assert stat.S_IMODE(key.with_suffix(".state").stat().st_mode) == 0o700


def test_two_clients_do_not_use_one_state_folder(tmp_path: Path) -> None:
    """Each would count what its own sums have cost, and delete what the other remembers."""
    make_local_keys(tmp_path, 1)
    files = "--key", tmp_path / "clients" / "client-1.key", "--authority", tmp_path / "ca.crt"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "lock").touch()
    words = "--server", "127.0.0.1:1", "--data", tmp_path, "--state", tmp_path / "own"
    with locked(tmp_path / "own" / "lock") as free:
        assert free
        result = ccfcpp("join", *files, *words)
    assert result.code == 2
    assert f"another ccfcpp join uses {tmp_path / 'own'}: end it" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_waits_for_clients_ends_at_once(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Nothing has begun that could be gone on with, and nothing of it is left."""
    with bounded(Processes(tmp_path)) as here:
        where = "--listen", f"127.0.0.1:{here.port}", "--insecure", "--clients", 2, "--clusters", 3
        server = here.start("serve", "ccfcpp", "serve", *where, "--out", here.out, at=tmp_path)
        here.wait_for("waiting for 2 of 2 clients")
        server.send_signal(number)
        assert server.wait(30) == 130
        said = here.said("serve").partition("waiting for 2 of 2 clients: ")[2]
        assert said == "client-1 and client-2 stopped: no run has begun"
    assert {path.name for path in tmp_path.iterdir()} == {"keys", "serve.log"}


def test_a_start_that_fails_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        words = "--insecure", "--clients", 2, "--clusters", 3, "--listen", where, "--out", "run"
        result = ccfcpp("serve", *words)
    assert result.code == 2
    assert "cannot listen on port" in result.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"keys"}


def test_a_state_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    make_local_keys(tmp_path, 1)
    (tmp_path / "file").touch()
    files = "--key", tmp_path / "clients" / "client-1.key", "--authority", tmp_path / "ca.crt"
    where = "--server", "127.0.0.1:1", "--data", tmp_path, "--state", tmp_path / "file"
    result = ccfcpp("join", *files, *where)
    assert (result.code, result.stdout) == (2, "")
    assert f"cannot be written to {tmp_path / 'file'}" in result.stderr
    assert result.stderr.endswith("give another --state\n")
