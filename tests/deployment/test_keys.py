"""Keys: who may read them, who is trusted by them, and that none is ever replaced."""

import os
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from ccfcpp.core.errors import UsageError
from ccfcpp.deployment.keys.certificates import parse_host, public_pem
from ccfcpp.deployment.keys.creation import make_authority, make_client, make_server
from ccfcpp.deployment.keys.files import check_client_name
from ccfcpp.deployment.keys.roster import read_roster


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- files ---------------------------------------------------------------------------------------


def test_private_files_are_their_owners(keys: Path) -> None:
    assert rights(keys) == 0o700
    for name in ("ca.key", "server.key", "clients/clinic-1.key"):
        assert rights(keys / name) == 0o600
    assert {path.name for path in keys.rglob("*") if path.is_file()} == {
        *("ca.key", "ca.crt", "server.key", "server.crt", "clinic-1.key", "clinic-1.pub")
    }


def test_a_private_file_is_private_before_it_holds_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    really = os.fdopen

    def spied(number: int, mode: str) -> object:
        seen.append((stat.S_IMODE(os.fstat(number).st_mode), os.fstat(number).st_size))
        return really(number, mode)

    monkeypatch.setattr(os, "fdopen", spied)
    before = os.umask(0)
    try:
        make_authority(tmp_path / "keys", 1)
    finally:
        os.umask(before)
    assert seen == [(0o600, 0), (0o644, 0)]


def test_nothing_is_ever_replaced(keys: Path) -> None:
    before = contents(keys)
    for again in (
        lambda: make_authority(keys, 1),
        lambda: make_server(keys, "localhost", 1),
        lambda: make_client(keys, "clinic-1"),
    ):
        with pytest.raises(UsageError, match="is there already, and keys are never replaced"):
            again()
    assert contents(keys) == before


def test_a_public_key_alone_keeps_its_private_one_from_being_made(tmp_path: Path) -> None:
    make_client(tmp_path / "keys", "a")
    (tmp_path / "keys/clients/a.key").unlink()
    with pytest.raises(UsageError, match=r"roster/a\.pub is there already"):
        make_client(tmp_path / "keys", "a")
    assert not (tmp_path / "keys/clients/a.key").exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "ca.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match=r"ca\.key is there already"):
        make_authority(tmp_path, 1)
    assert not (tmp_path / "elsewhere").exists()


def test_what_cannot_be_written_whole_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def full(path: Path, flags: int, rights: int) -> int:
        if path.suffix == ".crt":
            raise OSError(28, "No space left on device", str(path))
        return really(path, flags, rights)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(UsageError, match=r"ca\.crt cannot be written \(No space left on device\)"):
        make_authority(tmp_path / "keys", 1)
    assert contents(tmp_path) == {}


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises(UsageError, match="keys cannot be written"):
        make_authority(tmp_path / "keys", 1)


# --- certificates --------------------------------------------------------------------------------


def test_the_authority_signs_the_server(keys: Path) -> None:
    authority, server = certificate(keys / "ca.crt"), certificate(keys / "server.crt")
    server.verify_directly_issued_by(authority)
    authority.verify_directly_issued_by(authority)
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    now = datetime.now(UTC)
    assert server.not_valid_before_utc < now - timedelta(minutes=50)
    assert timedelta(days=1.9) < server.not_valid_after_utc - now < timedelta(days=2)


def test_a_certificate_is_for_the_host_and_for_this_machine(keys: Path, tmp_path: Path) -> None:
    def names(path: Path) -> tuple[list[str], list[str]]:
        extension = x509.SubjectAlternativeName
        found = certificate(path).extensions.get_extension_for_class(extension).value
        addresses = map(str, found.get_values_for_type(x509.IPAddress))
        return found.get_values_for_type(x509.DNSName), list(addresses)

    here = ["127.0.0.1", "::1"]
    assert names(keys / "server.crt") == (["server.example.org", "localhost"], here)
    make_authority(tmp_path, 1)
    make_server(tmp_path, "fd00::7", 1)
    assert names(tmp_path / "server.crt") == (["localhost"], ["fd00::7", *here])


def test_a_server_is_not_certified_for_longer_than_its_authority(tmp_path: Path) -> None:
    end = make_authority(tmp_path, 1)
    assert make_server(tmp_path, "localhost", 1000) == end


def test_a_strict_verifier_accepts_the_chain(keys: Path) -> None:
    context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server.crt", keys / "server.key")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = context.wrap_bio(to_client, to_server, server_hostname="server.example.org")
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (client_end, server_end, client_end, server_end):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert client_end.version() in {"TLSv1.2", "TLSv1.3"}


def test_a_server_needs_its_authority(keys: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no authority in .*: make one with ccfcpp keys"):
        make_server(tmp_path, "localhost", 1)
    make_authority(tmp_path / "other", 1)
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed/ca.key").write_bytes((keys / "ca.key").read_bytes())
    (tmp_path / "mixed/ca.crt").write_bytes((tmp_path / "other/ca.crt").read_bytes())
    with pytest.raises(UsageError, match="is not the key to"):
        make_server(tmp_path / "mixed", "localhost", 1)
    (tmp_path / "mixed/ca.crt").write_text("no certificate")
    with pytest.raises(UsageError, match="cannot be read"):
        make_server(tmp_path / "mixed", "localhost", 1)


def test_an_authority_that_has_ended_signs_nothing(tmp_path: Path) -> None:
    make_authority(tmp_path, 0)
    with pytest.raises(UsageError, match="ended on"):
        make_server(tmp_path, "localhost", 1)


@pytest.mark.parametrize(
    "host",
    [
        *("", "https://a.org", "a.org:443", "*.a.org", "a..org", "-a.org", "a_b.org", "10.0.0.256"),
        *("1.2.3", "münchen.de", "a b", "a/b", "[::1]", "x" * 64, ".".join(["abc"] * 70)),
    ],
)
def test_hosts_that_are_none(host: str) -> None:
    with pytest.raises(UsageError, match="is refused: give a name such as"):
        parse_host(host)


@pytest.mark.parametrize("host", ["a", "a-1.b.org", "10.0.0.1", "fd00::7", "xn--mnchen-3ya.de"])
def test_hosts(host: str) -> None:
    assert str(parse_host(host)) == host


# --- clients -------------------------------------------------------------------------------------


def test_a_client_has_the_key_that_flower_reads(keys: Path) -> None:
    private = load_ssh_private_key((keys / "clients/clinic-1.key").read_bytes(), None)
    line = (keys / "roster/clinic-1.pub").read_bytes()
    assert line.startswith(b"ecdsa-sha2-nistp384 ")
    assert line.endswith(b" clinic-1\n")
    public = load_ssh_public_key(line)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public


def test_flower_itself_reads_the_keys(keys: Path) -> None:
    register = pytest.importorskip("flwr.cli.supernode.register")
    supernode = pytest.importorskip("flwr.supernode.cli.flower_supernode")
    parser = supernode._parse_args_run_supernode()
    arguments = parser.parse_args(
        ["--auth-supernode-private-key", str(keys / "clients/clinic-1.key")]
    )
    found = supernode._try_setup_client_authentication(arguments)
    assert found is not None
    shown = found[1].public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert register.try_load_public_key(keys / "roster/clinic-1.pub") == shown
    own = read_roster(keys / "roster")
    assert {name: public_pem(key) for name, key in own.items()} == {"clinic-1": shown}


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".a", "-a", "a/b", "../a", "a\\b", "a b", "a\n", "é", "٣", "a\0", "a:b"),
        *("/etc/passwd", "x" * 65),
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"client name .* is refused") as caught:
        make_client(tmp_path / "keys", name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("name", ["a", "A.b-c_d", "7", "_x", "x" * 64])
def test_names(name: str) -> None:
    check_client_name(name)


# --- the roster ----------------------------------------------------------------------------------


def test_the_roster_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name in ("b", "a", "c.d"):
        make_client(tmp_path, name)
    (tmp_path / "roster/README").write_text("who is who")
    assert list(read_roster(tmp_path / "roster")) == ["a", "b", "c.d"]


def test_a_roster_that_does_not_serve(tmp_path: Path) -> None:
    roster = tmp_path / "roster"
    with pytest.raises(UsageError, match="there is no roster"):
        read_roster(roster)
    roster.mkdir()
    with pytest.raises(UsageError, match="holds no key"):
        read_roster(roster)
    make_client(tmp_path, "a")
    (roster / "b.pub").write_bytes((roster / "a.pub").read_bytes())
    with pytest.raises(UsageError, match=r"b\.pub is the key of a, too"):
        read_roster(roster)
    (roster / "b.pub").write_bytes((tmp_path / "clients/a.key").read_bytes())
    with pytest.raises(UsageError, match=r"b\.pub cannot be read as a public key"):
        read_roster(roster)
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    (roster / "b.pub").write_bytes(other.public_bytes(*form))
    with pytest.raises(UsageError, match=r"b\.pub is no key on the curve P-384"):
        read_roster(roster)
    (roster / "b.pub").rename(roster / "b c.pub")
    with pytest.raises(UsageError, match="client name 'b c' is refused"):
        read_roster(roster)
