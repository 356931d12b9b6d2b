"""What a user of ``ccfcpp keys`` sees."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.support.command import refused, succeeded

WITHOUT = importlib.util.find_spec("cryptography") is None


@pytest.mark.skipif(WITHOUT, reason="the extra flower is not installed")
def test_each_command_says_what_goes_where(tmp_path: Path) -> None:
    out = tmp_path / "keys"
    authority = succeeded("keys", "authority", "--out", out).stdout
    assert f"{out / 'ca.key'}: private, stays here" in authority
    assert f"{out / 'ca.crt'}: give it to the server and to every client" in authority
    server = succeeded("keys", "server", "10.0.0.1", "--out", out, "--days", 3).stdout
    assert f"{out / 'server.key'}: private, for the server alone" in server
    assert "for 10.0.0.1 and this machine itself, valid until 20" in server
    client = succeeded("keys", "client", "clinic-1", "--out", out).stdout
    assert f"{out / 'clients' / 'clinic-1.key'}: private, stays at the client" in client
    assert f"{out / 'roster' / 'clinic-1.pub'}: give it to the server" in client
    roster = succeeded("keys", "roster", "--out", out).stdout
    assert f"{out / 'roster.signed'}: 1 client: clinic-1" in roster
    assert "give it to the server" in roster


@pytest.mark.skipif(WITHOUT, reason="the extra flower is not installed")
def test_what_is_wrong_takes_one_line(tmp_path: Path) -> None:
    succeeded("keys", "client", "a", "--out", tmp_path)
    for arguments, message in (
        (("client", "a"), "is there already, and keys are never replaced"),
        (("client", "a/b"), "client name 'a/b' is refused"),
        (("server", "https://a.org"), "host 'https://a.org' is refused"),
        (("server", "a.org"), "there is no authority in"),
        (("roster",), "there is no authority in"),
    ):
        assert message in refused("keys", *arguments, "--out", tmp_path)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("creation", "certificates"):
        monkeypatch.delitem(sys.modules, f"ccfcpp.deployment.keys.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for arguments in (("authority",), ("server", "a.org"), ("client", "a"), ("roster",)):
        assert refused("keys", *arguments, "--out", tmp_path / "keys") == (
            "error: keys need the package cryptography, which is not installed: pip install "
            "'.[flower]'"
        )
    assert not (tmp_path / "keys").exists()
