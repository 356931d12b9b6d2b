"""Creation of a federation's key files.

There are three owners of keys, each of which creates its own:

- The **authority**: ``ca.key``, which signs, and ``ca.crt``, with which clients verify what it
  signed.
- The **server**: ``server.key`` and ``server.crt``, which the authority signs, for TLS.
- Each **client**: ``clients/NAME.key``, with which it signs its requests, in the format that
  ``flower-supernode --auth-supernode-private-key`` reads; and ``roster/NAME.pub``. A server admits
  the clients whose public keys are in its roster, each under the name of its file.

For secure sums the authority signs the roster, too: ``roster.signed``, which is replaced when
clients join or leave.

Only its owner may read a private key, and no key is ever replaced. With a passphrase a private key
is encrypted (PKCS #8). Missing folders are created with mode 700. A name or a folder that cannot be
used raises ``UsageError``.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from ccfcpp.core.errors import UsageError
from ccfcpp.core.files import write_atomically
from ccfcpp.deployment.keys.certificates import (
    Certificate,
    PrivateKey,
    PublicKey,
    authority_certificate,
    certificate_pem,
    client_pem,
    hosts_of,
    is_signed_by,
    new_key,
    parse_host,
    private_pem,
    read_authority,
    read_certificate,
    server_certificate,
)
from ccfcpp.deployment.keys.files import (
    PRIVATE,
    PUBLIC,
    ROSTER,
    check_client_name,
    private_path,
    public_path,
    write_new,
)
from ccfcpp.deployment.keys.roster import SignedRoster, public_file, read_roster, signed_file

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Host names that every server certificate includes, so that local clients can connect."""


def make_authority(folder: Path, days: int, passphrase: str | None = None) -> datetime:
    """Create an authority's key and certificate, and return when the certificate expires."""
    key = new_key()
    return _write_pair(folder, "ca", key, authority_certificate(key, days), passphrase)


def make_server(folder: Path, host: str, days: int, passphrase: str | None = None) -> datetime:
    """Create a server's key and its certificate, signed by the authority in the same folder.

    Args:
        folder: Folder of the authority's and of the server's keys.
        host: DNS name or IP address by which clients reach the server. The certificate also
            includes this machine's local names.
        days: Days for which the certificate is valid; at most as long as the authority's.
        passphrase: Passphrase of the server's key; None: the key is not encrypted.

    Returns:
        When the certificate expires.
    """
    hosts = dict.fromkeys(map(parse_host, (host, *_THIS_MACHINE)))
    authority, authority_key = read_authority(folder)
    key = new_key()
    certificate = server_certificate(key.public_key(), list(hosts), days, authority, authority_key)
    return _write_pair(folder, "server", key, certificate, passphrase)


def renew_server(folder: Path, days: int) -> datetime:
    """Replace a server's certificate by a new one, for the same key and the same hosts.

    Args:
        folder: Folder of the authority's key and of ``server.crt``; the server's private key is not
            needed.
        days: Days for which the new certificate is valid; at most as long as the authority's.

    Returns:
        When the new certificate expires.

    Raises:
        UsageError: There is no ``server.crt``, or this authority has not signed it.
    """
    authority, key = read_authority(folder)
    file = folder / "server.crt"
    before = read_certificate(file)
    public = before.public_key()
    if not is_signed_by(before, authority) or not isinstance(public, PublicKey):
        raise UsageError(f"{file} is not signed by the authority in {folder}: it is not renewed")
    hosts = [parse_host(host) for host in hosts_of(before)]
    certificate = server_certificate(public, hosts, days, authority, key)
    write_atomically(file, certificate_pem(certificate))
    return certificate.not_valid_after_utc


def make_client(folder: Path, name: str, passphrase: str | None = None) -> tuple[Path, Path]:
    """Create a client's key pair in a folder of keys; by it the server recognises the client.

    Returns:
        The paths of the private and of the public key.
    """
    check_client_name(name)
    key, private, public = new_key(), private_path(folder, name), public_path(folder / ROSTER, name)
    content = public_file(name, key.public_key())
    write_new(folder, {private: (client_pem(key, passphrase), PRIVATE), public: (content, PUBLIC)})
    return private, public


def make_roster(folder: Path, roster: Path) -> tuple[SignedRoster, Path]:
    """Sign the roster, a folder of public keys, with the key of the authority in ``folder``.

    Returns:
        The signed roster, and its file, beside the roster's folder.
    """
    _, authority = read_authority(folder)
    signed, path = SignedRoster.sign(read_roster(roster), authority), signed_file(roster)
    write_atomically(path, signed.content)
    return signed, path


def roster_for_sums(folder: Path, roster: Path) -> tuple[SignedRoster, bool]:
    """Return the signed roster (the clients' public keys), which a server needs for secure sums.

    If the signed file is missing or lists other clients, the roster is signed again, provided that
    the authority's key lies in the folder.

    Args:
        folder: Folder of the server's keys and, if it is on this machine, of the authority's.
        roster: Folder of the clients' public keys.

    Returns:
        The signed roster, and whether the authority's key lies in the folder.

    Raises:
        UsageError: There is no signed file for these clients, and no authority's key to sign one.
    """
    keys, path, is_here = read_roster(roster), signed_file(roster), (folder / "ca.key").exists()
    signed = _read_signed(path, keys, read_certificate(folder / "ca.crt"))
    if signed is None and not is_here:
        raise UsageError(
            f"secure sums need {path}, in which the authority has signed the clients of {roster}: "
            "copy their .pub files to keys/roster beside ca.key, run ccfcpp keys roster there, and "
            "copy roster.signed here"
        )
    return signed or make_roster(folder, roster)[0], is_here


def _read_signed(
    path: Path, keys: Mapping[str, PublicKey], authority: Certificate
) -> SignedRoster | None:
    """Read a signed roster from a file; None if it is missing, invalid or not of these ``keys``."""
    if not path.is_file():
        return None
    try:
        signed = SignedRoster.read(path.read_bytes(), authority)
    except UsageError:
        return None
    return signed if list(signed.keys.items()) == list(keys.items()) else None


def _write_pair(
    folder: Path, stem: str, key: PrivateKey, certificate: Certificate, passphrase: str | None
) -> datetime:
    files = {
        folder / f"{stem}.key": (private_pem(key, passphrase), PRIVATE),
        folder / f"{stem}.crt": (certificate_pem(certificate), PUBLIC),
    }
    write_new(folder, files)
    return certificate.not_valid_after_utc
