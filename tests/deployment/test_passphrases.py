"""Private keys that are sealed under a passphrase, and who is asked for it."""

import getpass
import os
import pty
import select
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.certificates import is_encrypted, read_key
from ccfcpp.deployment.keys.creation import make_authority, make_client, make_roster, make_server
from ccfcpp.deployment.keys.passphrases import FILE, new_passphrase
from ccfcpp.deployment.keys.roster import read_roster
from ccfcpp.deployment.link.packet import Packet
from ccfcpp.deployment.server.serving import open_server
from tests.deployment.test_fleet import Place, echo
from tests.support.command import Result, ccfcpp, succeeded

SECRET = "correct hörse battery staple"  # noqa: S105 - of these tests alone


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sealed keys."""
    place = tmp_path_factory.mktemp("sealed")
    (place / "passphrase").write_text(f"{SECRET}\nnot this line\n")
    keys = place / "keys"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FILE, str(place / "passphrase"))
        make_authority(keys, 2, SECRET)
        make_server(keys, "127.0.0.1", 2, SECRET)
        make_client(keys, "clinic-1", SECRET)
    return keys


@pytest.fixture
def known(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names the file with the passphrase."""
    monkeypatch.setenv(FILE, str(sealed.parent / "passphrase"))


def private(keys: Path) -> list[Path]:
    return [keys / "ca.key", keys / "server.key", keys / "clients" / "clinic-1.key"]


def assert_refused(result: Result, reason: str) -> None:
    assert (result.code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert reason in line


@pytest.mark.usefixtures("known")
def test_a_sealed_key_is_of_no_use_without_its_passphrase(sealed: Path) -> None:
    for path in private(sealed):
        assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert read_key(path).private_numbers() == read_key(path, SECRET).private_numbers()
        for other in ("x", SECRET + " ", SECRET.upper()):
            with pytest.raises(UsageError, match=f"the passphrase does not open {path}"):
                read_key(path, other)
    signed, _ = make_roster(sealed, sealed / "roster")
    assert signed.keys == read_roster(sealed / "roster")
    assert read_key(private(sealed)[2]).public_key() == signed.keys["clinic-1"]


def test_without_it_keys_are_as_they_were(keys: Path) -> None:
    assert not any(map(is_encrypted, private(keys)))
    assert private(keys)[2].read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")


@pytest.mark.usefixtures("known")
def test_a_federation_with_sealed_keys(sealed: Path, tmp_path: Path) -> None:
    with (
        open_server(sealed, sealed / "roster", "127.0.0.1", 0, tmp_path) as (fleet, port),
        (place := Place(sealed, fleet, port)).client("clinic-1", echo),
    ):
        assert place.answered(place.asked("clinic-1", Packet(b"x"))) == Packet(b"{}x")
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert any(str(sealed).encode() in command for command in commands)
        assert not any(b"battery" in command for command in commands)


def commands_of(sealed: Path, tmp_path: Path) -> dict[str, tuple[object, ...]]:
    """What needs a private key."""
    files = "--key", private(sealed)[2], "--authority", sealed / "ca.crt"
    where = "--keys", sealed, "--listen", "127.0.0.1:0", "--out", tmp_path / "run"
    return {
        "keys server": ("keys", "server", "a.org", "--out", sealed),
        "keys roster": ("keys", "roster", "--out", sealed),
        "join": ("join", *files, "--server", "127.0.0.1:1", "--data", tmp_path),
        "serve": ("serve", *where, "--clusters", 3),
    }


COMMANDS = "keys server", "keys roster", "join", "serve"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"wrong\n", "the passphrase does not open"),
        (b"", "a passphrase has 1 to 1000 bytes"),
        (b"\xff\xfe", "cannot be read as text"),
        (None, f"name a file that holds it in {FILE}"),  # and there is no terminal
    ],
)
def test_a_wrong_or_missing_passphrase_takes_one_line(
    command: str,
    content: bytes | None,
    reason: str,
    sealed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "passphrase"
    path.write_bytes(content or b"")
    monkeypatch.setenv(FILE, str(path) if content is not None else "")
    assert_refused(ccfcpp(*commands_of(sealed, tmp_path)[command]), reason)
    assert not (tmp_path / "run").exists()


def test_a_new_passphrase_is_typed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FILE, raising=False)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    asked: list[str] = []
    typed = iter(["one", "one", "one", "other", "", "x" * 1001])

    def answer(question: str) -> str:
        asked.append(question)
        return next(typed)

    monkeypatch.setattr(getpass, "getpass", answer)
    assert new_passphrase("the key of clinic-1") == "one"
    assert asked == ["new passphrase for the key of clinic-1: ", "the same again: "]
    for reason in ("differ", "1 to 1000 bytes", "1 to 1000 bytes"):
        with pytest.raises(UsageError, match=reason):
            new_passphrase("the key of clinic-1")


@pytest.mark.usefixtures("known")
def test_the_command_seals(tmp_path: Path) -> None:
    words = "--seal", "--out", tmp_path
    said = succeeded("keys", "authority", *words).stdout
    said += succeeded("keys", "server", "a.org", *words).stdout
    said += succeeded("keys", "client", "clinic-1", *words).stdout
    assert all(map(is_encrypted, private(tmp_path)))
    assert "battery" not in said


def test_nothing_that_is_typed_is_shown(tmp_path: Path) -> None:
    """At a terminal of its own."""
    here, there = pty.openpty()
    command = [sys.executable, "-m", "ccfcpp", "keys", "client", "a", "--seal"]
    environment = {key: value for key, value in os.environ.items() if key != FILE}
    with subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        stdin=there,
        stdout=there,
        stderr=there,
        env=environment,
        start_new_session=True,  # else it would ask the terminal of the tests
    ) as process:
        os.close(there)
        shown = b""
        for question in (b"new passphrase for the key of a: ", b"the same again: "):
            until = time.monotonic() + 60
            while question not in shown:
                assert time.monotonic() < until, shown
                if select.select([here], [], [], 0.1)[0]:
                    shown += os.read(here, 4096)
            os.write(here, b"battery staple\n")
        assert process.wait(60) == 0
    os.close(here)
    assert b"battery" not in shown
    assert is_encrypted(tmp_path / "clients" / "a.key")
    read_key(tmp_path / "clients" / "a.key", "battery staple")
