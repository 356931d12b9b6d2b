"""Kits for sites, requests of clients, and keys that come and go."""

import hashlib
import os
import re
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.client.rules import Rules, read_rules
from ccfcpp.deployment.keys import certificates
from ccfcpp.deployment.keys.certificates import (
    check_server,
    hosts_of,
    is_encrypted,
    new_key,
    read_certificate,
    read_key,
)
from ccfcpp.deployment.keys.creation import make_authority, make_client, make_server, renew_server
from ccfcpp.deployment.keys.kits import make_kit
from ccfcpp.deployment.keys.requests import (
    RosterRequest,
    accept_request,
    make_request,
    renew_client,
    take_off_roster,
)
from ccfcpp.deployment.keys.roster import fingerprint, read_roster, roster_names
from tests.support.command import ccfcpp, refused, succeeded

SERVER = "server.example.org:9092"
ROOT = Path(__file__).parents[2]
SECRET = "correct horse"  # noqa: S105 - a test's


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """An authority and a server's key."""
    folder = tmp_path / "keys"
    make_authority(folder, 30)
    make_server(folder, "server.example.org", 30)
    return folder


# --- kits -----------------------------------------------------------------------------------------


def test_a_kit_has_all_that_a_site_needs(keys: Path, tmp_path: Path) -> None:
    out = tmp_path / "clinic-1.zip"
    public = make_kit(keys, "clinic-1", SERVER, out, SECRET)
    assert out.stat().st_mode & 0o777 == 0o600
    with zipfile.ZipFile(out) as archive:
        archive.extractall(tmp_path)
    site = tmp_path / "clinic-1"
    files = {"clinic-1.key", "ca.crt", "clinic-1.rules", "README.txt"}
    assert {path.name for path in site.iterdir()} == files
    key = site / "clinic-1.key"
    assert is_encrypted(key)
    assert read_key(key, SECRET).public_key() == read_roster(keys / "roster")["clinic-1"]
    assert public == keys / "roster" / "clinic-1.pub"
    assert (site / "ca.crt").read_bytes() == (keys / "ca.crt").read_bytes()
    assert read_rules(site / "clinic-1.rules", {}) == Rules()
    page = (site / "README.txt").read_text()
    command = f"ccfcpp join --server {SERVER} --key clinic-1.key --authority ca.crt --data PHOTOS"
    assert command in page
    assert len(page.splitlines()) < 60
    # Nowhere else is the private key.
    assert not (keys / "clients").exists()


def page_of(kit: Path) -> str:
    with zipfile.ZipFile(kit) as archive:
        return archive.read("a/README.txt").decode()


def test_a_kit_holds_the_package_and_its_number(keys: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "ccfcpp-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ccfcpp/__init__.py", "")
    make_kit(keys, "a", SERVER, tmp_path / "a.zip", SECRET, wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert digest in page_of(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as kit:
        assert kit.read(f"a/{wheel.name}") == wheel.read_bytes()
        assert kit.read("a/requirements.txt").decode() == f"./{wheel.name}[flower,privacy]"


def test_a_kit_names_no_package_of_an_index(keys: Path, tmp_path: Path) -> None:
    """Nobody holds the package's name there: whoever took it could run code at every site."""
    make_kit(keys, "a", SERVER, tmp_path / "a.zip", SECRET)
    page = page_of(tmp_path / "a.zip")
    assert "install 'FILE[flower,privacy]'" in page
    assert "ccfcpp[" not in page
    docs = [*(ROOT / "docs").rglob("*"), ROOT / "README.md", *(ROOT / "ccfcpp").rglob("*.py")]
    for path in docs:
        if path.suffix in {".md", ".py", ".service", ""} and path.is_file():
            assert not re.search(r"install (--\S+ )*'?ccfcpp\b", path.read_text()), path


@pytest.mark.parametrize(
    ("wheel", "lock", "complaint"),
    [
        ("other-1-py3-none-any.whl", None, "is no wheel of ccfcpp"),
        ("ccfcpp-2-py3-none-any.whl", None, "is no wheel of ccfcpp"),
        (None, "a==1 --hash=sha256:00", "give --wheel, too"),
        ("ccfcpp-1-py3-none-any.whl", "a>=1", "'a>=1' locks nothing"),
        ("ccfcpp-1-py3-none-any.whl", "a==1", "'a==1' locks nothing"),
    ],
)
def test_what_is_no_package_comes_into_no_kit(
    wheel: str | None, lock: str | None, complaint: str, keys: Path, tmp_path: Path
) -> None:
    for name in ("ccfcpp-1-py3-none-any.whl", "other-1-py3-none-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("a", "")
    (tmp_path / "ccfcpp-2-py3-none-any.whl").write_text("no archive")
    (tmp_path / "lock").write_text(f"{lock}\n")
    given = tmp_path / wheel if wheel else None
    with pytest.raises(UsageError, match=complaint):
        make_kit(
            keys,
            "a",
            SERVER,
            tmp_path / "a.zip",
            SECRET,
            given,
            tmp_path / "lock" if lock else None,
        )
    assert not (tmp_path / "a.zip").exists()
    assert not (keys / "roster").exists()


def test_each_rule_of_a_kit_can_be_switched_on(keys: Path, tmp_path: Path) -> None:
    make_kit(keys, "a", SERVER, tmp_path / "a.zip", SECRET)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        _, *lines = archive.read("a/a.rules").decode().splitlines()
    (tmp_path / "on.rules").write_text("\n".join(line.removeprefix("# ") for line in lines))
    rules = read_rules(tmp_path / "on.rules", {})
    secure = {"only_secure_sums", "honest", "colluders"}
    told = {"allow", "smallest_count", "only_private", "budget"}
    assert rules.model_fields_set - {"accept"} == told | secure


@pytest.mark.parametrize(
    ("name", "server", "complaint"),
    [
        ("clinic-1", "other.example.org:9092", "the server's certificate is not for other.example"),
        ("../a", SERVER, "is refused"),
        ("there", SERVER, "there is on the roster"),
    ],
)
def test_a_kit_that_would_not_work_is_not_made(
    name: str, server: str, complaint: str, keys: Path, tmp_path: Path
) -> None:
    make_client(keys, "there")
    with pytest.raises(UsageError, match=complaint):
        make_kit(keys, name, server, tmp_path / "out.zip", SECRET)
    assert not (tmp_path / "out.zip").exists()
    assert roster_names(keys / "roster") == {"there"}


def test_the_command_takes_the_passphrase_from_its_file(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    monkeypatch.chdir(tmp_path)
    words = "keys", "kit", "clinic-1", "--server", SERVER
    assert ccfcpp(*words).code == 2
    monkeypatch.setenv("CCFCPP_PASSPHRASE_FILE", str(tmp_path / "secret"))
    assert ccfcpp(*words[:-1], "https://x/").code == 2
    said = succeeded(*words, "--out", "clinic-1.zip").stdout
    assert "clinic-1.zip: for clinic-1 alone" in said
    assert SECRET not in said
    assert (tmp_path / "clinic-1.zip").is_file()


@pytest.mark.parametrize(
    ("key", "authority", "complaint"),
    [
        ("ca.crt", "ca.crt", "ca.crt cannot be read as a private key"),
        ("clients/a.key", "ca.key", "ca.key cannot be read as a certificate"),
        ("roster/a.pub", "ca.crt", "a.pub cannot be read as a private key"),
        ("clients/b.key", "ca.crt", "b.key is missing"),
    ],
)
def test_files_that_are_no_keys_end_a_client_at_once(
    key: str, authority: str, complaint: str, keys: Path
) -> None:
    make_client(keys, "a")
    files = "--key", keys / key, "--authority", keys / authority
    result = ccfcpp("join", "--server", "127.0.0.1:9", "--data", keys, *files)
    assert result.code == 2
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


# --- requests -------------------------------------------------------------------------------------


def test_a_site_makes_its_key_and_is_put_on_the_roster(keys: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    asked = succeeded("keys", "request", "clinic-1", "--out", site).stdout
    signed = succeeded("keys", "sign", site / "clinic-1.request", "--out", keys).stdout
    own = read_key(site / "clients" / "clinic-1.key").public_key()
    assert read_roster(keys / "roster") == {"clinic-1": own}
    assert fingerprint(own) in asked
    assert fingerprint(own) in signed
    # Again, it asks for the same key, and is there.
    succeeded("keys", "request", "clinic-1", "--out", site)
    succeeded("keys", "sign", site / "clinic-1.request", "--out", keys)
    assert read_roster(keys / "roster") == {"clinic-1": own}


def test_a_request_that_was_changed_is_none(tmp_path: Path) -> None:
    path, _ = make_request(tmp_path, "clinic-1")
    content = path.read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(UsageError, match="is no request of a client"):
            RosterRequest.read(path)


def test_nobody_asks_for_the_key_of_another(tmp_path: Path) -> None:
    """The key is public, but only its owner signs."""
    path, _ = make_request(tmp_path / "a", "clinic-1")
    taken = path.read_bytes().replace(b"clinic-1", b"clinic-2")
    path.write_bytes(taken)
    with pytest.raises(UsageError, match="is no request"):
        accept_request(path, tmp_path / "roster")
    assert not (tmp_path / "roster").exists()


@pytest.mark.parametrize("content", [b"", b"\n" * 10, b"\xff" * 100, b"x" * 10**6])
def test_what_is_no_request_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.request").write_bytes(content)
    with pytest.raises(UsageError, match="is no request"):
        RosterRequest.read(tmp_path / "a.request")


def test_a_name_on_the_roster_is_given_to_nobody_else(keys: Path, tmp_path: Path) -> None:
    first, _ = make_request(tmp_path / "a", "clinic-1")
    accept_request(first, keys / "roster")
    other, _ = make_request(tmp_path / "b", "clinic-1")
    before = read_roster(keys / "roster")
    with pytest.raises(UsageError, match="with a key that has not signed"):
        accept_request(other, keys / "roster")
    assert read_roster(keys / "roster") == before
    key = read_key(tmp_path / "a" / "clients" / "clinic-1.key")
    (tmp_path / "c.request").write_bytes(RosterRequest.encode("clinic-3", key))
    with pytest.raises(UsageError, match="under another name"):
        accept_request(tmp_path / "c.request", keys / "roster")


# --- revoking and renewing ------------------------------------------------------------------------


def test_who_is_revoked_is_off_the_roster(keys: Path) -> None:
    for name in ("a", "b"):
        make_client(keys, name)
    succeeded("keys", "revoke", "a", "--out", keys)
    assert [*read_roster(keys / "roster")] == ["b"]
    assert ccfcpp("keys", "revoke", "a", "--out", keys).code == 2
    with pytest.raises(UsageError, match="is refused"):
        take_off_roster("../ca", keys / "roster")


def test_a_revoked_key_stays_off_the_roster(keys: Path, tmp_path: Path) -> None:
    first, _ = make_request(tmp_path / "site", "clinic-1")
    accept_request(first, keys / "roster")
    taken = take_off_roster("clinic-1", keys / "roster")
    with pytest.raises(UsageError, match=f"has been revoked: .* remove {taken}"):
        accept_request(first, keys / "roster")
    second, _ = make_request(tmp_path / "later", "clinic-1")
    accept_request(second, keys / "roster")
    assert take_off_roster("clinic-1", keys / "roster") != taken
    copied = keys / "roster" / "copied.pub"
    copied.write_bytes(taken.read_bytes())
    with pytest.raises(UsageError, match=f"the key {copied} has been revoked: .* {taken}"):
        read_roster(keys / "roster")
    copied.unlink()
    taken.unlink()
    accept_request(first, keys / "roster")


def test_a_client_gets_another_key_by_the_one_before(keys: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    first, _ = make_request(site, "clinic-1")
    accept_request(first, keys / "roster")
    before = read_key(site / "clients" / "clinic-1.key")
    again, number = renew_client(site, "clinic-1", SECRET)
    new, old = (site / "clients" / f"clinic-1.key{end}" for end in ("", ".old"))
    assert is_encrypted(new)
    assert read_key(old).public_key() == before.public_key()
    assert {path.stat().st_mode & 0o777 for path in (new, old)} == {0o600}
    accept_request(again, keys / "roster")
    key = read_key(new, SECRET).public_key()
    assert read_roster(keys / "roster") == {"clinic-1": key}
    assert read_roster(site / "roster") == {"clinic-1": key}
    assert fingerprint(key) == number
    with pytest.raises(UsageError, match="is kept of an earlier renewal"):
        renew_client(site, "clinic-1")
    old.unlink()
    with pytest.raises(UsageError, match="is sealed, and the new one would not be: give --seal"):
        renew_client(site, "clinic-1")
    assert is_encrypted(new)


def test_a_key_is_renewed_whose_public_half_went_to_the_server(tmp_path: Path) -> None:
    make_client(tmp_path, "a")
    (tmp_path / "roster" / "a.pub").unlink()
    _, number = renew_client(tmp_path, "a")
    assert fingerprint(read_roster(tmp_path / "roster")["a"]) == number


def test_a_renewal_that_fails_leaves_the_old_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_client(tmp_path, "a")
    before = {path: path.read_bytes() for path in tmp_path.rglob("a.*")}
    really = os.open

    def full(path: Path, flags: int, *rights: int) -> int:
        if flags & os.O_EXCL and str(path).endswith(".pub"):
            raise OSError(28, "No space left on device", str(path))
        return really(path, flags, *rights)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(UsageError, match="No space left"):
        renew_client(tmp_path, "a")
    assert {path: path.read_bytes() for path in tmp_path.rglob("a.*")} == before


def test_a_server_keeps_its_key_and_hosts(keys: Path) -> None:
    before = read_certificate(keys / "server.crt")
    private = (keys / "server.key").read_bytes()
    (keys / "server.key").unlink()  # it is at the server
    said = succeeded("keys", "renew", "server", "--out", keys, "--days", 20).stdout
    after = read_certificate(keys / "server.crt")
    assert f"{after.not_valid_after_utc:%Y-%m-%d}" in said
    assert after.public_key() == before.public_key()
    assert hosts_of(after) == hosts_of(before)
    assert "server.example.org" in hosts_of(after)
    (keys / "server.key").write_bytes(private)
    assert check_server(keys / "server.crt", keys / "ca.crt") == ""


def test_a_renewal_takes_no_options_of_the_other_kind(tmp_path: Path) -> None:
    renew = ("keys", "renew", "--out", tmp_path)
    assert "--days 730 has no effect on a client's key" in refused(*renew, "a", "--days", 730)
    assert "leave --seal out" in refused(*renew, "server", "--seal")


def test_another_authority_renews_nothing(keys: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "other", 30)
    (tmp_path / "other" / "server.crt").write_bytes((keys / "server.crt").read_bytes())
    with pytest.raises(UsageError, match="is not signed by the authority"):
        renew_server(tmp_path / "other", 30)
    with pytest.raises(UsageError, match="is not signed by"):
        check_server(keys / "server.crt", tmp_path / "other" / "ca.crt")


@pytest.mark.parametrize(("days", "note"), [(-1, ""), (3, "ends on"), (20, "")])
def test_a_server_is_told_before_its_certificate_ends(
    days: int, note: str, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = read_certificate(keys / "server.crt").not_valid_after_utc

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return (end - timedelta(days=days)).astimezone(UTC)

    monkeypatch.setattr(certificates, "datetime", Later)
    if days < 0:
        with pytest.raises(UsageError, match="renew it with ccfcpp keys renew server"):
            check_server(keys / "server.crt", keys / "ca.crt")
    else:
        assert (note in check_server(keys / "server.crt", keys / "ca.crt")) is True
        assert bool(check_server(keys / "server.crt", keys / "ca.crt")) is bool(note)


def test_two_keys_have_two_fingerprints() -> None:
    first, second = (fingerprint(new_key().public_key()) for _ in range(2))
    assert first != second
    assert len(first.split()) == 5
